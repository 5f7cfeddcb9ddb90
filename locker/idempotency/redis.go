package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is the part of a go-redis client that [NewRedis] needs: *redis.Client, *redis.ClusterClient and the others have it.
type Client interface {
	Get(ctx context.Context, key string) *redis.StringCmd
	SetArgs(ctx context.Context, key string, value any, a redis.SetArgs) *redis.StatusCmd
}

// responses comes before the names of Records, which lie beside the locks and must not be taken for them.
const responses = "response:"

// within bounds a call. go-redis itself goes on for longer when a server hangs, whatever becomes of the context.
const within = 2 * time.Second

// An Option sets up the Store that [NewRedis] returns.
type Option func(*redisStore)

// WithPrefix puts prefix before the names of Records: give services that share a Redis one each, as with locker.WithPrefix.
// Default: none.
func WithPrefix(prefix string) Option { return func(s *redisStore) { s.prefix = prefix + responses } }

// NewRedis returns a Store that keeps each Record as a string, prefix + "response:" + key, until it has run out. The server's
// eviction policy must leave them alone, or requests run again. A call takes at most 2 s.
func NewRedis(c Client, opts ...Option) Store {
	s := redisStore{c, responses}
	for _, o := range opts {
		o(&s)
	}
	return s
}

type redisStore struct {
	client Client
	prefix string
}

// wire is a Record as it is kept.
type wire struct {
	Version     int                 `json:"v"`
	Fingerprint []byte              `json:"f"`
	Status      int                 `json:"s"`
	Header      map[string][]string `json:"h,omitempty"`
	Body        []byte              `json:"b,omitempty"`
	Partial     bool                `json:"p,omitempty"`
}

const wireVersion = 1

func (s redisStore) Load(ctx context.Context, key string) (Record, bool, error) {
	text, err := bounded(ctx, func(ctx context.Context) ([]byte, error) { return s.client.Get(ctx, s.prefix+key).Bytes() })
	if errors.Is(err, redis.Nil) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("idempotency: load: %w", err)
	}
	var w wire
	if err := json.Unmarshal(text, &w); err != nil || w.Version != wireVersion || len(w.Fingerprint) != len(Record{}.Fingerprint) {
		return Record{}, false, errors.New("idempotency: load: what lies there is no response that this version has kept; delete it, or wait until it has run out")
	}
	return Record{
		Fingerprint: [32]byte(w.Fingerprint), Status: w.Status, Header: w.Header, Body: w.Body, Partial: w.Partial,
	}, true, nil
}

func (s redisStore) Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error {
	text, err := json.Marshal(wire{wireVersion, rec.Fingerprint[:], rec.Status, rec.Header, rec.Body, rec.Partial})
	if err != nil {
		return fmt.Errorf("idempotency: save: %w", err)
	}
	_, err = bounded(ctx, func(ctx context.Context) (string, error) {
		return s.client.SetArgs(ctx, s.prefix+key, text, redis.SetArgs{Mode: "NX", TTL: lifetime}).Result()
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil: there is one already
		return fmt.Errorf("idempotency: save: %w", err)
	}
	return nil
}

// bounded calls go-redis and returns in time. A call that hangs ends by itself, by go-redis' own time-outs; both calls may run
// late, and twice, without harm.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		defer cancel()
		value, err := call(ctx)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		select {
		case a := <-answers: // both at once: the answer counts
			return a.value, a.err
		default:
			return none, ctx.Err()
		}
	}
}
