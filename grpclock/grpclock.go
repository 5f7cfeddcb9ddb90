package grpclock

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
)

// UnaryServerInterceptor returns an interceptor that runs the handlers of unary calls under the locks that rules name.
// Methods without a rule run without a lock.
//
// The error says which argument makes no sense. Mistakes in rules are found by [Rules.Bind].
func UnaryServerInterceptor(l locker.Locker, rules *Rules, opts ...Option) (grpc.UnaryServerInterceptor, error) {
	g, err := newGuard("UnaryServerInterceptor", l, rules, opts)
	if err != nil {
		return nil, err
	}
	return g.unary, nil
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams.
func StreamServerInterceptor(l locker.Locker, rules *Rules, opts ...Option) (grpc.StreamServerInterceptor, error) {
	g, err := newGuard("StreamServerInterceptor", l, rules, opts)
	if err != nil {
		return nil, err
	}
	return g.stream, nil
}

// guard is what the constructors make of their arguments.
type guard struct {
	config
	rules    *Rules
	receiver *delegate.Receiver // nil: delegations are not taken
	locks    locker.Guard[*call]
}

func newGuard(what string, l locker.Locker, rules *Rules, opts []Option) (*guard, error) {
	if isNil(l) {
		return nil, fmt.Errorf("grpclock: %s: the Locker is nil; make one with locker.NewSingle, and check its error", what)
	}
	if rules == nil {
		return nil, fmt.Errorf("grpclock: %s: the Rules are nil; give FromDescriptors(), or FromMap", what)
	}
	cfg, err := newConfig(what, opts)
	if err != nil {
		return nil, err
	}
	g := &guard{config: cfg, rules: rules}
	if g.delegation {
		if g.receiver, err = delegate.NewReceiver(l, g.delegated...); err != nil {
			return nil, fmt.Errorf("grpclock: %s: WithDelegation: %w", what, err)
		}
		l = g.receiver
	}
	g.locks = locker.Guard[*call]{Locker: l, Rule: g.rule}
	return g, nil
}

// call is one call, as far as its rule depends on it.
type call struct {
	name     string // the full method
	method   *method
	provider KeyProvider
	req      any // nil before the first message of a stream
}

// guarded returns the call to be guarded; false: it runs without a lock.
func (g *guard) guarded(ctx context.Context, fullMethod string, server any) (*call, bool) {
	m := g.rules.method(fullMethod)
	provider, _ := server.(KeyProvider)
	if m == nil && provider == nil {
		return nil, false
	}
	for _, applies := range g.filters {
		if !applies(ctx, fullMethod) {
			return nil, false
		}
	}
	return &call{name: fullMethod, method: m, provider: provider}, true
}

// errFailed tells Run that the handler did not succeed, so that Rule.Once does not remember the work as done.
var errFailed = errors.New("the handler failed")

// errUnguarded is the error of a call for which a KeyProvider has no key, and nobody else has.
var errUnguarded = errors.New("this call needs no lock")

// unary is the interceptor. How it ends:
//
//	the handler ran, the lock was held    what the handler returned
//	the handler ran, the lock was lost    ABORTED, with the reason LOCK_LOST
//	the handler did not run               the Problem that says why
//	the handler panicked                  the panic goes on, after the release
func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	if ctx, err = g.receive(ctx); err != nil {
		return nil, g.refuse(ctx, nil, err)
	}
	c, guarded := g.guarded(ctx, info.FullMethod, info.Server)
	if !guarded {
		return handler(ctx, req)
	}
	c.req = req
	ran := false
	var failure error
	err = g.locks.Run(ctx, c, func(ctx context.Context) error {
		ran = true
		if resp, failure = handler(ctx, req); failure != nil {
			return errFailed
		}
		return nil
	})
	switch {
	case err == nil || err == errFailed:
		return resp, failure
	case err == errUnguarded:
		return handler(ctx, req)
	case !ran:
		return nil, g.refuse(ctx, c, err)
	}
	if p := g.spoiled(ctx, c, err, failure); p != nil {
		return nil, p
	}
	return resp, failure
}
