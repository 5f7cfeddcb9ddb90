package idempotency

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// recordPrefix separates Records from locks with the same name.
const recordPrefix = "response:"

// callTimeout is the time-out of each call. When a server hangs, go-redis itself may take longer,
// even after the end of the context.
const callTimeout = 2 * time.Second

// A RedisOption sets up the Store that [NewRedis] returns.
type RedisOption func(*redisStore)

// WithPrefix puts prefix before the names of Records. Services that share a Redis server need
// different prefixes, as with locker.WithPrefix. Default: none.
func WithPrefix(prefix string) RedisOption {
	return func(s *redisStore) { s.prefix = prefix + recordPrefix }
}

// redisStore is the Store of [NewRedis].
type redisStore struct {
	client redis.Cmdable
	prefix string
}

var _ Store = (*redisStore)(nil)

// NewRedis returns a Store that keeps each Record as a hash, prefix + "response:" + key, until its
// lifetime is over.
//
// Use a Redis server that has no locks, because answers need much memory for a long time. A server
// whose memory is full refuses a new Record, so no work begins whose answer could not be stored.
// The maxmemory-policy of the server should be noeviction or volatile-ttl, because after an early
// eviction of a Record, its request can run again. A call takes at most 2 s.
func NewRedis(c redis.Cmdable, opts ...RedisOption) Store {
	if c == nil {
		panic("idempotency: NewRedis: the client is nil; give a client of the service's Redis")
	}
	s := redisStore{c, recordPrefix}
	for _, o := range opts {
		o(&s)
	}
	return &s
}

var (
	//go:embed lua/swap.lua
	swapText string
	//go:embed lua/digests
	swapDigest string
	// A program in FIPS 140-only mode may not compute a SHA-1, so the digest is in a file.
	swapSHA, _, _ = strings.Cut(swapDigest, " ")
)

// Load implements [Store].
func (s *redisStore) Load(ctx context.Context, key string) (Record, error) {
	fields, err := bounded(ctx, func(ctx context.Context) ([]any, error) {
		return s.client.HMGet(ctx, s.prefix+key, "run", "open", "answer").Result()
	})
	if err != nil {
		return Record{}, fmt.Errorf("idempotency: load: %w", err)
	}
	return readRecord(fields), nil
}

// Swap implements [Store].
func (s *redisStore) Swap(ctx context.Context, key string, old, next Record, lifetime time.Duration) (Record, error) {
	args := []any{old.Run, openMark(old), next.Run, openMark(next), lifetime.Milliseconds()}
	if next.Answer != nil {
		args = append(args, next.Answer)
	}
	fields, err := bounded(ctx, func(ctx context.Context) ([]any, error) {
		keys := []string{s.prefix + key}
		fields, err := s.client.EvalSha(ctx, swapSHA, keys, args...).Slice()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			return s.client.Eval(ctx, swapText, keys, args...).Slice()
		}
		return fields, err
	})
	if err != nil {
		return Record{}, fmt.Errorf("idempotency: swap: %w", err)
	}
	return readRecord(fields), nil
}

func openMark(rec Record) string {
	if rec.Open {
		return "1"
	}
	return ""
}

// readRecord reads the fields run, open and answer.
func readRecord(fields []any) (rec Record) {
	var text [3]string
	var there [3]bool
	for i := range min(len(fields), len(text)) {
		text[i], there[i] = fields[i].(string)
	}
	rec.Run, rec.Open = text[0], text[1] != ""
	if there[2] {
		rec.Answer = []byte(text[2])
	}
	return rec
}

// bounded calls go-redis, and returns after callTimeout at the latest. A call that hangs then
// continues until go-redis' own time-outs end it. The server may execute that call later, which is
// harmless, because every call may be executed twice.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		defer cancel()
		value, err := call(ctx)
		replies <- reply{value, err}
	}()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		select {
		case r := <-replies: // the reply counts, even if ctx has ended too
			return r.value, r.err
		default:
			return none, ctx.Err()
		}
	}
}
