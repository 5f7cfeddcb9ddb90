package scriptless

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
)

// tries is the largest number of attempts at a change. An attempt fails when another client has
// written the key meanwhile. If this other client has taken the key, the next attempt finds
// that the owner has lost the lease, and is the last attempt.
const tries = 16

// change writes to the lease of c if the owner of c holds it, and reports whether the owner held
// the lease. The function write adds the commands of the change to p; left is the time that the
// lease has left. Each attempt has three steps:
//
//	WATCH   the server remembers the key for this connection
//	GET     and PTTL: is the owner still the holder?
//	EXEC    the server executes the commands of write; if the key was written or deleted, or has
//	        run out since WATCH, the server does nothing, and change makes another attempt
//
// If write adds no command, there is no EXEC.
func (s *Store) change(ctx context.Context, c store.Claim, write func(left time.Duration, p redis.Pipeliner)) (ours bool, err error) {
	for range tries {
		sent := false
		var failure error
		watching := s.client.Watch(ctx, func(tx *redis.Tx) error {
			if sent { // after some errors, the client of a Cluster calls this function again, which must then do nothing
				return nil
			}
			var left time.Duration
			ours, left, failure = isHolder(ctx, tx, c)
			if failure != nil || !ours {
				return failure
			}
			cmds, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				write(left, p)
				sent = p.Len() > 0
				return nil
			})
			if failure = err; sent && failure == nil {
				ours = foundKey(cmds[0])
			}
			return nil // the result does not depend on this error: the variable failure has the outcome of EXEC
		}, c.Key)
		if !sent && watching != nil {
			failure = watching
		}
		switch no := (*store.Refusal)(nil); {
		case errors.Is(failure, redis.TxFailedErr):
			continue
		case errors.Is(failure, redis.Nil): // SET XX has not found its key
			return false, nil
		case failure == nil:
			return ours, nil
		// The key has data that is no lock, so the owner does not hold the lease.
		case errors.As(refused(failure), &no) && errors.Is(no, store.ErrInvalidKey):
			return false, nil
		}
		return false, refused(failure)
	}
	return false, &store.Refusal{Temporary: true, Err: fmt.Errorf("other clients wrote the key during each of %d attempts to change it", tries)}
}

// isHolder reports whether the owner of c holds the key, and how much time the lease has left.
func isHolder(ctx context.Context, tx *redis.Tx, c store.Claim) (ours bool, left time.Duration, err error) {
	var value *redis.StringCmd
	var ttl *redis.DurationCmd
	_, err = tx.Pipelined(ctx, func(p redis.Pipeliner) error {
		value, ttl = p.Get(ctx, c.Key), p.PTTL(ctx, c.Key)
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return false, 0, nil
	}
	return err == nil && parse(value.Val(), 0).owner == c.Owner && c.Owner != "", ttl.Val(), err
}

// foundKey reports whether the command first, a PEXPIRE or a DEL, has found its key. The key may be
// missing, because a server before 6.0.9 executes a transaction even if a watched key has run out.
func foundKey(first redis.Cmder) bool {
	cmd, ok := first.(noRetryCmd)
	if !ok {
		return true
	}
	n, isNumber := cmd.Val().(int64)
	return !isNumber || n > 0
}

// noRetryCmd is a command of a transaction. The client go-redis must not repeat it, because only
// the Engine knows which calls may be repeated.
type noRetryCmd struct{ *redis.Cmd }

func newNoRetryCmd(ctx context.Context, words ...any) noRetryCmd {
	return noRetryCmd{redis.NewCmd(ctx, words...)}
}

// NoRetry keeps go-redis from sending the command again. The repetition would repeat the whole
// transaction.
func (noRetryCmd) NoRetry() bool { return true }
