package recipes

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/optimistic"
)

// Token is what an authorization server has issued. Its refresh token can be spent once.
type Token struct {
	Access, Refresh string
	Expires         time.Time
}

// Tokens keeps one token in Redis for all replicas of a service.
type Tokens struct {
	Redis    *redis.Client
	L        locker.Locker
	Key      string // the stored token
	Exchange func(ctx context.Context, refresh string) (Token, error)
}

// Get returns a token that is valid for a minute at least. One caller of all replicas refreshes it.
func (t *Tokens) Get(ctx context.Context) (token Token, err error) {
	if _, token, err = t.look(ctx); err != nil || token.fresh() {
		return token, err
	}
	rule := locker.Rule{Key: "refresh:" + t.Key, TTL: 5 * time.Second}
	err = locker.Run(ctx, t.L, rule, func(ctx context.Context) error {
		stored, old, err := t.look(ctx) // another replica may have refreshed it meanwhile
		if token = old; err != nil || token.fresh() {
			return err
		}
		// The exchange spends the old refresh token. So neither it nor the store ends with ctx. The
		// new token is stored before the release, unless another replica has stored a newer one.
		ctx = context.WithoutCancel(ctx)
		exchange, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if token, err = t.Exchange(exchange, old.Refresh); err != nil {
			return err
		}
		ctx, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		return optimistic.Update(ctx, t.Redis, t.Key, func(_ context.Context, now []byte) ([]byte, error) {
			if now != nil && !bytes.Equal(now, stored) {
				return now, json.Unmarshal(now, &token)
			}
			return json.Marshal(token)
		})
	})
	return token, err
}

func (t *Tokens) look(ctx context.Context) (stored []byte, token Token, err error) {
	if stored, err = t.Redis.Get(ctx, t.Key).Bytes(); err == nil {
		err = json.Unmarshal(stored, &token)
	}
	return stored, token, err
}

func (t Token) fresh() bool { return time.Until(t.Expires) > time.Minute }
