package idempotency

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is the part of a go-redis client that [NewRedis] needs. *redis.Client,
// *redis.ClusterClient and the other clients of go-redis have these methods.
type Client interface {
	redis.Scripter
	HMGet(ctx context.Context, key string, fields ...string) *redis.SliceCmd
	Del(ctx context.Context, keys ...string) *redis.IntCmd
}

// recordPrefix separates Records from locks with the same name.
const recordPrefix = "response:"

// callTimeout is the time-out of each call. When a server hangs, go-redis itself may take longer,
// even after the end of the context.
const callTimeout = 2 * time.Second

// A RedisOption sets up the Store that [NewRedis] returns.
type RedisOption func(*Redis)

// WithPrefix puts prefix before the names of Records. Services that share a Redis server need
// different prefixes, as with locker.WithPrefix. Default: none.
func WithPrefix(prefix string) RedisOption {
	return func(s *Redis) { s.prefix = prefix + recordPrefix }
}

// Redis is a [Store] on a Redis server. Make a Redis with [NewRedis].
type Redis struct {
	client Client
	prefix string
}

var _ Store = (*Redis)(nil)

// NewRedis returns a Store that keeps each Record as a hash, prefix + "response:" + key, until its
// lifetime is over. Responses are compressed.
//
// Use a Redis server that has no locks, because answers need much memory for a long time. A server
// whose memory is full refuses Begin, so no work begins whose answer could not be stored. The
// maxmemory-policy of the server should be noeviction or volatile-ttl, because after an early
// eviction of a Record, its request can run again. A call takes at most 2 s.
func NewRedis(c Client, opts ...RedisOption) *Redis {
	s := Redis{c, recordPrefix}
	for _, o := range opts {
		o(&s)
	}
	return &s
}

// The names of the fields of a Record in Redis. The scripts write these fields.
const (
	fieldFence       = "fence"
	fieldFingerprint = "fingerprint"
	fieldOpen        = "open" // exists while the request is in progress
	fieldResponse    = "response"
)

var (
	//go:embed lua/begin.lua
	beginText string
	//go:embed lua/save.lua
	saveText string
	//go:embed lua/forget.lua
	forgetText string

	beginScript  = redis.NewScript(beginText)
	saveScript   = redis.NewScript(saveText)
	forgetScript = redis.NewScript(forgetText)
)

// Load implements [Store].
func (s *Redis) Load(ctx context.Context, key string) (Record, bool, error) {
	fields, err := bounded(ctx, func(ctx context.Context) ([]any, error) {
		return s.client.HMGet(ctx, s.prefix+key, fieldFence, fieldFingerprint, fieldOpen, fieldResponse).Result()
	})
	if err != nil {
		return Record{}, false, fmt.Errorf("idempotency: load: %w", err)
	}
	rec, found, err := readRecord(fields)
	if err != nil {
		return Record{}, false, fmt.Errorf("idempotency: load: %w", err)
	}
	return rec, found, nil
}

// Begin implements [Store].
func (s *Redis) Begin(ctx context.Context, key string, fingerprint [32]byte, fence uint64, lifetime time.Duration) (
	earlier Record, found, began bool, err error,
) {
	reply, err := s.run(ctx, beginScript, key, digits(fence), fingerprint[:], lifetime.Milliseconds())
	if err != nil {
		return Record{}, false, false, fmt.Errorf("idempotency: begin: %w", err)
	}
	fields, ok := reply.([]any)
	if !ok || len(fields) != 5 {
		return Record{}, false, false, fmt.Errorf("idempotency: begin: the script answered %T", reply)
	}
	earlier, found, err = readRecord(fields[1:])
	if err != nil {
		return Record{}, false, false, fmt.Errorf("idempotency: begin: %w", err)
	}
	return earlier, found, fields[0] == int64(1), nil
}

// Save implements [Store].
func (s *Redis) Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error {
	args := []any{digits(rec.Fence), rec.Fingerprint[:], lifetime.Milliseconds()}
	if rec.State == Answered {
		text, err := rec.Response.MarshalBinary()
		if err != nil {
			return fmt.Errorf("idempotency: save: %w", err)
		}
		args = append(args, text)
	}
	reply, err := s.run(ctx, saveScript, key, args...)
	switch {
	case err != nil:
		return fmt.Errorf("idempotency: save: %w", err)
	case reply == "overtaken":
		return ErrOvertaken
	}
	return nil
}

// Forget implements [Store].
func (s *Redis) Forget(ctx context.Context, key string, fence uint64) error {
	if _, err := s.run(ctx, forgetScript, key, digits(fence)); err != nil {
		return fmt.Errorf("idempotency: forget: %w", err)
	}
	return nil
}

// Remove deletes the Record of key, whatever its state. Remove is for operators who want a
// request to run again.
func (s *Redis) Remove(ctx context.Context, key string) error {
	_, err := bounded(ctx, func(ctx context.Context) (int64, error) {
		return s.client.Del(ctx, s.prefix+key).Result()
	})
	if err != nil {
		return fmt.Errorf("idempotency: remove: %w", err)
	}
	return nil
}

// run executes script on the Record of key, and returns its reply.
func (s *Redis) run(ctx context.Context, script *redis.Script, key string, args ...any) (any, error) {
	return bounded(ctx, func(ctx context.Context) (any, error) {
		return script.Run(ctx, s.client, []string{s.prefix + key}, args...).Result()
	})
}

// digits returns fence with leading zeros, so that the order of the texts is the order of the
// numbers.
func digits(fence uint64) string { return fmt.Sprintf("%020d", fence) }

var errForeign = errors.New("the key holds a value in an unknown format, which another program or version has written; " +
	"delete it, or wait until it has expired")

// readRecord reads the fields fence, fingerprint, open and response. The result found is false when
// there is no Record.
func readRecord(fields []any) (rec Record, found bool, err error) {
	if len(fields) != 4 {
		return rec, false, errForeign
	}
	var text [4]string
	var there [4]bool
	for i, f := range fields {
		text[i], there[i] = f.(string)
	}
	if !there[0] && !there[1] && !there[2] && !there[3] {
		return rec, false, nil
	}
	if _, err := fmt.Sscanf(text[0], "%020d", &rec.Fence); err != nil || len(text[1]) != len(rec.Fingerprint) {
		return Record{}, false, errForeign
	}
	copy(rec.Fingerprint[:], text[1])
	switch {
	case there[2]:
		rec.State = InProgress
	case !there[3]:
		rec.State = DoneOnly
	default:
		rec.State = Answered
		if err := rec.Response.UnmarshalBinary([]byte(text[3])); err != nil {
			return Record{}, false, errForeign
		}
	}
	return rec, true, nil
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
