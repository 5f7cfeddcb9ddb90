package asynqlock

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// An Option sets up the Guard that [New] returns.
type Option func(*config)

// config has the values of the options. Their defaults are set only in newConfig.
type config struct {
	rules      rules
	secret     []byte
	propagator Propagator

	redis  redis.UniversalClient // asynq's Redis
	wakes  bool                  // WithWaking was given
	prefix string
}

func newConfig(opts []Option) (config, error) {
	var c config
	for _, o := range opts {
		o(&c)
	}
	if c.wakes && c.redis == nil {
		return c, errors.New("asynqlock: WithWaking: the client is nil; give a client of asynq's Redis, or leave the option out")
	}
	return c, c.rules.compile(&c)
}

// On guards the tasks whose type is pattern or begins with pattern. keys makes the keys of these
// tasks, and policies set how the tasks run. If several patterns match, the longest pattern wins,
// so a pattern matches the same tasks here as in an asynq.ServeMux. pattern may end with a '*',
// which changes nothing. The pattern "*" matches all tasks.
func On(pattern string, keys Keys, policies ...Policy) Option {
	return func(c *config) { c.rules = append(c.rules, newRule(pattern, keys, policies)) }
}

// WithSecret sets the secret for parts like {payload.email|hmac}: at least 16 random bytes, the
// same in all processes. Default: no secret, and such parts are refused.
func WithSecret(secret []byte) Option { return func(c *config) { c.secret = secret } }

// WithWaking runs tasks that were put off as soon as a task has released their key, one after the
// other, in the order of their arrival. If anything else releases the key, or a process dies, the
// next task runs when its pause is over: see [Snooze]. A task is put off while a retry is left;
// asynq would archive a task without one, so such a task waits in its worker. c is a client of
// asynq's Redis, and must outlive the Guard. Use this option in every Guard of a service, so that
// all Guards keep the order. Without WithWaking, a task that was put off comes again after a pause,
// in no order. Use WithWaking wherever more than a few tasks share a key.
//
// Waking uses asynq's Inspector, and blocks no worker. The lines of waiting tasks are sorted sets
// named asynqlock:line:{KEY}; see [WithPrefix].
func WithWaking(c redis.UniversalClient) Option {
	return func(cfg *config) { cfg.redis, cfg.wakes = c, true }
}

// WithPrefix sets the prefix of the keys that [WithWaking] keeps in asynq's Redis. If the Locker
// has a prefix, use the same prefix. The same key under two prefixes is two locks, and needs two
// lines. Default: no prefix.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// A Propagator carries the context of a trace in the headers of a task. otellock.Headers is a
// Propagator.
type Propagator interface {
	// Inject adds to headers the values that Extract needs.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns ctx with the values that Inject has added to headers, usually in another
	// process. headers may be nil.
	Extract(ctx context.Context, headers map[string]string) context.Context
}

// WithPropagator makes a task's locks part of the trace in which a [Client] enqueued the task.
// Default: none.
func WithPropagator(p Propagator) Option { return func(c *config) { c.propagator = p } }
