package scriptless

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
)

// deletions are the commands that delete a key if it has a value: of Redis 8.4, and of Valkey 9.
var deletions = []func(key, value string) []any{
	func(key, value string) []any { return []any{"delex", key, "ifeq", value} },
	func(key, value string) []any { return []any{"delifeq", key, value} },
}

// deleteLease deletes the lease of c in one round trip, if the server has a command for it. If the
// result is false, the caller must look at the key: another owner may have it, or the server may
// have refused the command.
//
// A refusal makes this process try the next command, and at last none. A server that is replaced by
// one with another command, by a failover or an upgrade, is noticed in the same way; only the
// command of an earlier entry is not tried again.
func (s *Store) deleteLease(ctx context.Context, c store.Claim) (deleted bool, err error) {
	for i := s.deletion.Load(); int(i) < len(deletions); i++ {
		cmd := newNoRetryCmd(ctx, deletions[i](c.Key, valueOf(c.Owner, c.Metadata))...)
		err := s.client.Process(ctx, cmd)
		if err == nil {
			n, _ := cmd.Int64()
			return n > 0, nil
		}
		if _, reply := errors.AsType[redis.Error](err); !reply {
			return false, refused(err)
		}
		if !strings.HasPrefix(err.Error(), "ERR ") && !redis.HasErrorPrefix(err, "NOPERM") {
			return false, nil // a replica, or a server that is loading: the look at the key gets the same answer
		}
		s.deletion.CompareAndSwap(i, i+1)
	}
	return false, nil
}
