package grpclock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/locker"
)

// ServerOptions returns the options of a server that runs its methods under the locks of rules: the
// interceptors for unary calls and for streams.
//
//	options, err := grpclock.ServerOptions(l, rules)
//	…
//	server := grpc.NewServer(options...)
//	pb.RegisterInventoryServer(server, inventory)
//	err = rules.Bind(server)
//
// A call waits for at most 5 s, or for the wait of its rule. Then it is refused: ABORTED with
// RetryInfo, and UNAVAILABLE while Redis does not answer.
//
// Until [Rules.Bind] has succeeded, the server refuses every call with INTERNAL. So the first call
// shows a forgotten Bind, and no method runs without its lock by mistake.
//
// The interceptors are chained after the interceptors of earlier grpc.ChainUnaryInterceptor and
// grpc.ChainStreamInterceptor options. Give tracing, recovery and authentication to grpc.NewServer
// first.
//
// The error says which argument is invalid.
func ServerOptions(l locker.Locker, rules *Rules, opts ...Option) ([]grpc.ServerOption, error) {
	g, err := newGuard("ServerOptions", l, rules, opts)
	if err != nil {
		return nil, err
	}
	g.strict = true
	rules.guardedBy(g, true, true)
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(g.unary), grpc.ChainStreamInterceptor(g.stream)}, nil
}

// UnaryServerInterceptor returns an interceptor that runs the handlers of unary calls under the
// locks that rules name. Methods without a rule run without a lock. Most servers use
// [ServerOptions].
//
// The error says which argument is invalid. [Rules.Bind] finds mistakes in the rules.
func UnaryServerInterceptor(l locker.Locker, rules *Rules, opts ...Option) (grpc.UnaryServerInterceptor, error) {
	g, err := newGuard("UnaryServerInterceptor", l, rules, opts)
	if err != nil {
		return nil, err
	}
	rules.guardedBy(g, true, false)
	return g.unary, nil
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams.
func StreamServerInterceptor(l locker.Locker, rules *Rules, opts ...Option) (grpc.StreamServerInterceptor, error) {
	g, err := newGuard("StreamServerInterceptor", l, rules, opts)
	if err != nil {
		return nil, err
	}
	rules.guardedBy(g, false, true)
	return g.stream, nil
}

// guard has the checked arguments of the constructors.
type guard struct {
	config
	rules   *Rules
	strict  bool // no call runs before Bind
	locker  locker.Locker
	breaker *breaker.Breaker // nil without WithFailOpen
	events  requestObserver  // nil: calls are not counted
}

func newGuard(what string, l locker.Locker, rules *Rules, opts []Option) (*guard, error) {
	if l == nil {
		return nil, fmt.Errorf("grpclock: %s: the Locker is nil; make one with locker.New, and check its error", what)
	}
	cfg, err := newConfig(what, opts)
	if err != nil {
		return nil, err
	}
	g := &guard{config: cfg, rules: rules, locker: l, strict: cfg.mustBind}
	g.events, _ = l.(requestObserver)
	if g.failOpen {
		g.breaker = breaker.New(l)
	}
	return g, nil
}

// errFailed makes locker.Run treat the handler as failed, so that Rule.OnceFor does not mark the
// work as done.
var errFailed = errors.New("the handler failed")

// unary is the interceptor for unary calls. A call ends in one of these ways:
//
//	the handler ran, the lock was held    with the handler's result
//	the handler ran, the lock was lost    with ABORTED and the reason LOCK_LOST
//	the handler did not run               with the Problem that is the reason
//	the handler panicked                  the panic continues after the release
func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	c, err := g.admit(ctx, info.FullMethod)
	switch {
	case err != nil:
		return nil, g.refuse(ctx, c, err)
	case c == nil:
		return handler(ctx, req)
	}
	c.req = req
	locks, err := g.locks(ctx, c)
	switch {
	case err != nil:
		return nil, g.refuse(ctx, c, err)
	case g.open(ctx, c):
		return handler(ctx, c.req)
	}
	ran, began, call := false, time.Now(), ctx
	var failure error
	err = g.run(ctx, locks, func(ctx context.Context) error {
		ran = true
		g.acquired(call, locks, began)
		if resp, failure = handler(ctx, c.req); failure != nil {
			return errFailed
		}
		return nil
	})
	switch {
	case err == errFailed && errors.Is(failure, locker.ErrClosed): // Close has ended the handler's context
		return nil, g.answer(ctx, closing.problem(c, failure))
	case err == nil || err == errFailed:
		return resp, failure
	case !ran && g.opens(ctx, c, err):
		return handler(ctx, c.req)
	case !ran:
		return nil, g.refuse(ctx, c, err)
	}
	if p := g.spoiled(ctx, c, err, failure); p != nil {
		return nil, p
	}
	return resp, failure
}

// run calls fn under all locks; there is at least one.
func (g *guard) run(ctx context.Context, locks []locker.Rule, fn func(ctx context.Context) error) error {
	return g.breaker.Try(ctx, locks[0].Key, func(ctx context.Context, granted func()) error {
		work := func(ctx context.Context) error {
			granted()
			return fn(ctx)
		}
		if len(locks) == 1 {
			return locker.Run(ctx, g.locker, locks[0], work)
		}
		return locker.RunAll(ctx, g.locker, locks, work)
	})
}
