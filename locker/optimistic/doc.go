// Package optimistic changes values in Redis without a lock. It reads a value, computes the new
// one, and writes it if no other client has written meanwhile. Otherwise it starts again.
//
//	err := optimistic.Update(ctx, client, "cart:7", func(ctx context.Context, old []byte) ([]byte, error) {
//		cart, err := parse(old) // old is nil if there is no cart
//		if err != nil {
//			return nil, err
//		}
//		cart.Add("apple")
//		return cart.Bytes(), nil
//	})
//
// It suits data that is only in Redis, work that takes no longer than a round trip or two, and
// keys with few conflicts. With frequent conflicts, each success makes the work of all failed
// callers useless. A lock is then faster, and serves its callers in order. Work that has effects
// outside the key needs a lock, because the function may run several times.
package optimistic
