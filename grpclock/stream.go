package grpclock

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/latchkit/latchkit/locker"
)

// stream is the interceptor. It ends as unary does.
func (g *guard) stream(server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	outer, err := g.receive(ss.Context())
	if err != nil {
		return g.refuse(outer, nil, err)
	}
	c, guarded := g.guarded(outer, info.FullMethod, server)
	if !guarded {
		if outer != ss.Context() {
			ss = &stripped{ss, outer}
		}
		return handler(server, ss)
	}
	base, end := context.WithCancelCause(outer)
	defer end(nil)
	s := &guardedStream{ServerStream: ss, guard: g, call: c, base: base, end: end, over: make(chan error, 1), released: make(chan error, 1)}
	s.ctx = &streamContext{Context: base}
	if c.provider == nil && (c.method.early || c.method.err != nil) {
		if err := s.acquire(); err != nil {
			return err
		}
	}
	return s.serve(server, handler)
}

// guardedStream is a stream that is under a lock, or will be when its first message is received. Run holds the lock on a
// goroutine of its own, because the handler has begun already when the first message is there.
type guardedStream struct {
	grpc.ServerStream
	guard *guard
	call  *call
	base  context.Context // without the lease
	end   context.CancelCauseFunc
	ctx   *streamContext // what the handler sees

	asked    bool                  // for the lock; only the receiving goroutine and, after the handler, settle look at it
	over     chan error            // tells Run how the handler ended
	released chan error            // what Run returned
	refused  atomic.Pointer[error] // why there is no lock
}

// acquire takes the lock, and returns the reply when there is none.
func (s *guardedStream) acquire() error {
	held := make(chan context.Context, 1)
	go func() {
		s.released <- s.guard.locks.Run(s.base, s.call, func(ctx context.Context) error {
			held <- ctx
			return <-s.over
		})
	}()
	select {
	case ctx := <-held:
		s.asked = true
		s.ctx.hold(ctx)
		context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
		return nil
	case err := <-s.released:
		if err == errUnguarded {
			s.asked = true
			s.released <- nil
			return nil
		}
		err = s.guard.refuse(s.base, s.call, err)
		s.refused.Store(&err)
		return err
	}
}

// serve runs the handler, and gives the lock up.
func (s *guardedStream) serve(server any, handler grpc.StreamHandler) error {
	returned := false
	defer func() {
		if !returned { // it panicked, and goes on doing so after the release
			_ = s.settle(errFailed)
		}
	}()
	failure := handler(server, s)
	returned = true
	if refused := s.refused.Load(); refused != nil { // whatever the handler made of it
		return *refused
	}
	var err error
	if failure != nil {
		err = s.settle(errFailed)
	} else {
		err = s.settle(nil)
	}
	if err != nil && err != errFailed {
		if p := s.guard.spoiled(s.base, s.call, err, failure); p != nil {
			return p
		}
	}
	return failure
}

// settle ends Run's function, and says how the lock ended.
func (s *guardedStream) settle(result error) error {
	if !s.asked {
		return nil
	}
	s.over <- result
	return <-s.released
}

// Context returns the stream's context. It has the lease from when the lock is held, also if it was asked for before.
func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message. It waits on a goroutine of its own, so that a lock that is lost ends the wait: a message that
// comes later is dropped with the stream.
func (s *guardedStream) RecvMsg(m any) error {
	if lost := s.ended(); lost != nil {
		return lost
	}
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		if lost := s.ended(); lost != nil {
			return lost
		}
		if err != nil || s.asked {
			return err
		}
		s.call.req = m
		return s.acquire()
	case <-s.ctx.Done():
		if lost := s.ended(); lost != nil {
			return lost
		}
		return <-received // the call itself has ended, and so does the stream
	}
}

// SendMsg sends a message, unless the lock is lost.
func (s *guardedStream) SendMsg(m any) error {
	if lost := s.ended(); lost != nil {
		return lost
	}
	return s.ServerStream.SendMsg(m)
}

// ended returns why the handler must stop; nil while it may go on, or its client has gone.
func (s *guardedStream) ended() error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	ctx := s.ctx.lease.Load()
	if ctx == nil || (*ctx).Err() == nil {
		return nil
	}
	switch cause := context.Cause(*ctx); {
	case endedEarly(cause):
		return overtaken.problem(s.call, cause)
	case errors.Is(cause, locker.ErrClosed):
		return closing.problem(s.call, cause)
	}
	return nil
}

// streamContext is the context of a stream whose lock may be taken only after the handler has asked for the context: it ends
// with the stream or with the lock, and has the lease from when there is one.
type streamContext struct {
	context.Context
	lease atomic.Pointer[context.Context] // Run's context, which descends from Context
}

func (c *streamContext) hold(ctx context.Context) { c.lease.Store(&ctx) }

// Value finds the lease, and what the stream's context has.
func (c *streamContext) Value(name any) any {
	if ctx := c.lease.Load(); ctx != nil {
		return (*ctx).Value(name)
	}
	return c.Context.Value(name)
}

// AfterFunc lets package context watch c without a goroutine: what Value finds is another context's end.
func (c *streamContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(c.Context, f)
}
