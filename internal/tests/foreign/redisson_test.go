package foreign

import (
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// redissonTries is the script with which Redisson's RLock first tries to take a lock.
const redissonTries = `if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then
	redis.call('hincrby', KEYS[1], ARGV[2], 1)
	redis.call('pexpire', KEYS[1], ARGV[1])
	return nil
end
return redis.call('pttl', KEYS[1])`

// An RLock of Redisson is a hash under the key, and a lease of latchkit is a string. As
// docs/migrating.md states, neither library takes a key that the other library holds. The
// refused caller gets an error at once.
func TestALockOfRedissonAndOneOfLatchkitRefuseEachOther(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	tries := func(key string) error {
		return client.Eval(t.Context(), redissonTries, []string{key}, 30000, "285475da-9152-4c83-822a-67ee2f116a79:52").Err()
	}
	for _, kind := range []string{"NewSingle", "NewReadWrite"} {
		l, key := openLocker(t, kind, []*redistest.Server{server}), "redisson:"+kind
		lease := locktest.Acquire(t, l, locker.Rule{Key: key})
		if err := tries(key); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%s: Redisson tries the key that latchkit holds: %v", kind, err)
		}
		locktest.Release(t, lease)
		if err := tries(key); err != nil && err.Error() != "redis: nil" {
			t.Fatal(err)
		}
		_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: time.Second})
		_ = locktest.WantErr(t, err, key, locker.ErrInvalidKey)
		if n := client.HLen(t.Context(), key).Val(); n != 1 {
			t.Errorf("%s: the RLock has %d fields", kind, n)
		}
	}
}
