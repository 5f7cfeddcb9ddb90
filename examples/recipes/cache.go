package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// Cache loads a value only once, even if many callers on many pods need the value at the same
// time.
type Cache struct {
	Redis *redis.Client
	L     locker.Locker
	TTL   time.Duration // how long a value stays in the cache
}

// Get returns the value of key. If the value is not in the cache, one caller loads it by
// calling load.
func (c *Cache) Get(ctx context.Context, key string, load func(context.Context) (string, error)) (value string, err error) {
	value, err = c.Redis.Get(ctx, key).Result()
	if !errors.Is(err, redis.Nil) {
		return value, err
	}
	err = locker.Run(ctx, c.L, locker.Rule{Key: "fill:" + key, TTL: 5 * time.Second}, func(ctx context.Context) error {
		value, err = c.Redis.Get(ctx, key).Result() // another caller may have stored it meanwhile
		if !errors.Is(err, redis.Nil) {
			return err
		}
		if value, err = load(ctx); err != nil {
			return err
		}
		return c.Redis.Set(ctx, key, value, c.TTL).Err()
	})
	return value, err
}
