package asynqlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// An Option sets up the Guard that [New] returns.
type Option func(*config)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	rules      rules
	decode     Decoder
	notJSON    bool // decode is the user's
	secret     []byte
	propagator Propagator

	client    *asynq.Client
	inspector *asynq.Inspector
	clones    bool
}

func newConfig(opts []Option) (config, error) {
	c := config{decode: decodeJSON}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("asynqlock: New: option %d is nil; leave it out instead", i+1)
		}
		o(&c)
	}
	return c, c.validate()
}

func (c *config) validate() error {
	switch {
	case c.decode == nil:
		return errors.New("asynqlock: WithDecoder(nil); leave it out to decode JSON")
	case c.clones && (c.client == nil || c.inspector == nil):
		return errors.New("asynqlock: WithClones: the client or the inspector is nil; give both, or leave it out")
	}
	return c.rules.compile(c)
}

// On guards the tasks whose type is pattern, or begins with it, by keys and policies. As with asynq.ServeMux the longest
// pattern counts, so the same text names the same tasks there and here; a '*' at its end may say that it is a beginning, and "*"
// is all tasks.
func On(pattern string, keys Keys, policies ...Policy) Option {
	return func(c *config) { c.rules = append(c.rules, newRule(pattern, keys, policies)) }
}

// A Decoder decodes the payload of a task into what into points to: the type that was given to [Key] or [Fields], a
// map[string]any for [Template].
type Decoder func(t *asynq.Task, into any) error

// WithDecoder sets how payloads are decoded. For messages of protobuf, with Key(func(p *pb.Welcome) string {…}):
//
//	asynqlock.WithDecoder(func(t *asynq.Task, into any) error { return proto.Unmarshal(t.Payload(), into.(proto.Message)) })
//
// Default: JSON.
func WithDecoder(decode Decoder) Option {
	return func(c *config) { c.decode, c.notJSON = decode, true }
}

// WithSecret sets the secret for parts like {payload.email|hmac}: at least 16 random bytes, the same in all processes.
// Default: none, such parts are refused.
func WithSecret(secret []byte) Option { return func(c *config) { c.secret = secret } }

// WithClones lets a task be put off that has no retry left, by a clone: a task with the same payload, time-out, deadline and
// retention under another ID, the old one and '~' and a number, while the old one is deleted. While the clone of a [Unique] task is
// put off, another can be enqueued. Default: such a task waits in its worker, on its own time, and at most until that is nearly
// over; then asynq archives it, as it does if the worker dies meanwhile.
func WithClones(c *asynq.Client, i *asynq.Inspector) Option {
	return func(cfg *config) { cfg.client, cfg.inspector, cfg.clones = c, i, true }
}

// A Propagator carries the context of a trace in the headers of a task. otellock.Headers is one.
type Propagator interface {
	// Inject adds to headers what Extract needs.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns ctx with what Inject added, in another process. headers may be nil.
	Extract(ctx context.Context, headers map[string]string) context.Context
}

// WithPropagator lets a task's locks be part of the trace in which a [Client] enqueued it. Default: none.
func WithPropagator(p Propagator) Option { return func(c *config) { c.propagator = p } }

// decodeJSON is the default of WithDecoder.
func decodeJSON(t *asynq.Task, into any) error { return json.Unmarshal(t.Payload(), into) }

// isNil finds a nil Locker also inside the interface: what a constructor returned with an error nobody looked at.
func isNil(l locker.Locker) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
