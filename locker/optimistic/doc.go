// Package optimistic changes values in Redis without a lock. It reads a value, computes a new
// value, and writes the new value if no other client has written the key meanwhile. Otherwise
// the update starts again.
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
// Use this package for data that is only in Redis, for work that takes one or two round trips
// at most, and for keys with few conflicts. With frequent conflicts, each success makes the
// work of all other callers useless. Then a lock is faster, and serves its callers in order.
// Work that has effects outside the key needs a lock, because the function may run several
// times.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package optimistic
