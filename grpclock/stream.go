package grpclock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/locker"
)

// stream is the interceptor for streams. A stream ends in one of the ways that the comment of the
// method unary lists.
func (g *guard) stream(server any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	outer := ss.Context()
	c, err := g.admit(outer, info.FullMethod)
	switch {
	case err != nil:
		return g.refuse(outer, c, err)
	case c == nil:
		return handler(server, ss)
	}
	s := newGuardedStream(outer, g, c, ss)
	defer s.end(nil)
	if c.early() {
		if err := s.acquire(); err != nil {
			return err
		}
	}
	return s.serve(server, handler)
}

// guardedStream is a stream that has a lock, or that takes a lock when its first message is
// received.
//
// Three goroutines use a stream. The interceptor's goroutine runs the handler. The receiver is the
// goroutine of the handler that receives the first message; it starts the holder, and waits for the
// lock. If the key needs no request, the interceptor's goroutine does this before the handler runs.
// The holder is a goroutine of its own that holds the lock in locker.Run, because the handler
// already runs when the first message arrives. The handler may return at any moment, so the mutex
// mu decides what comes first:
//
//	the lock is asked for, then the handler returns     settle waits for the holder to end
//	the handler returns, then the lock is needed        the lock is not asked for
//	the handler returns, then the lock is granted       the holder gives the lock back at once
type guardedStream struct {
	grpc.ServerStream
	guard *guard
	call  *call
	base  context.Context // the stream's context without a lease
	held  context.Context // the context with which the lock is taken; a child of `base`
	ctx   *streamContext  // the context that the handler sees

	endBase, endHeld context.CancelCauseFunc

	mu       sync.Mutex
	asked    bool          // a holder was started, or the stream needs no holder
	granted  bool          // the holder got the lock while the handler was running
	over     bool          // the handler has returned
	result   error         // the handler's result, which the holder passes to locker.Run
	returned chan struct{} // closed when `over` and `result` are set
	released chan struct{} // closed when the holder has ended
	outcome  error         // the result of locker.Run; set before `released` is closed

	// failed is why the stream was stopped; nil if it was not stopped. When the lease ends, the
	// reason is in the lease's context, and not here.
	failed atomic.Pointer[error]
}

func newGuardedStream(outer context.Context, g *guard, c *call, ss grpc.ServerStream) *guardedStream {
	base, endBase := context.WithCancelCause(outer)
	held, endHeld := context.WithCancelCause(base)
	s := &guardedStream{
		ServerStream: ss, guard: g, call: c,
		base: base, endBase: endBase, held: held, endHeld: endHeld,
		returned: make(chan struct{}), released: make(chan struct{}),
	}
	s.ctx = &streamContext{Context: base, end: s.end}
	return s
}

// end ends the contexts of the stream. The context with the lease ends first, because context.Cause
// looks for the cause in this context as soon as the handler's context has ended.
func (s *guardedStream) end(cause error) {
	s.endHeld(cause)
	s.endBase(cause)
}

// acquire takes the lock. If the stream does not get the lock, acquire returns the status with
// which the stream ends.
func (s *guardedStream) acquire() error {
	locks, err := s.guard.locks(s.held, s.call)
	switch {
	case err != nil:
		return s.refuse(err)
	case s.guard.open(s.base, s.call):
		return s.goWithout()
	}
	held, began := make(chan context.Context, 1), time.Now()
	if !s.ask(locks, held) {
		return s.refuse(context.Canceled)
	}
	select {
	case ctx := <-held:
		s.ctx.hold(ctx)
		s.guard.acquired(s.base, locks, began)
		context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
		return nil
	case <-s.released:
		if s.guard.opens(s.base, s.call, s.outcome) {
			return nil
		}
		return s.refuse(s.outcome)
	}
}

// goWithout lets the stream continue without a lock.
func (s *guardedStream) goWithout() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
	close(s.released)
	return nil
}

// ask starts the holder, unless the handler has returned. It reports whether it has started the
// holder.
func (s *guardedStream) ask(locks []locker.Rule, held chan<- context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.asked = true
	go func() {
		defer close(s.released)
		s.outcome = errExited
		s.outcome = s.guard.run(s.held, locks, func(ctx context.Context) error {
			if !s.grant() {
				return errFailed
			}
			held <- ctx
			<-s.returned
			return s.result
		})
	}()
	return true
}

// grant reports whether the handler still runs, and can use the lock.
func (s *guardedStream) grant() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted = !s.over
	return s.granted
}

// refuse stops a stream that does not get its lock. If the handler has returned already, the client
// gets the handler's answer.
func (s *guardedStream) refuse(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return err
	}
	p := problem(s.base, s.call, err).send(s.base)
	reason := s.stop(p) // first, because an observer may panic
	s.guard.report(s.base, p)
	return reason
}

// serve runs the handler, and releases the lock.
func (s *guardedStream) serve(server any, handler grpc.StreamHandler) error {
	returned := false
	defer func() {
		if !returned { // the handler panicked, and the panic continues after the release
			_ = s.settle(errFailed)
		}
	}()
	failure := handler(server, s)
	returned = true
	stopped := s.failed.Load()
	var err error
	if failure != nil || stopped != nil {
		err = s.settle(errFailed)
	} else {
		err = s.settle(nil)
	}
	if stopped != nil { // the stream was stopped, so the handler's error does not count
		return *stopped
	}
	switch {
	case err == errFailed && errors.Is(failure, locker.ErrClosed): // Close has ended the handler's context
		return s.guard.answer(s.base, closing.problem(s.call, failure))
	case err != nil && err != errFailed:
		if p := s.guard.spoiled(s.base, s.call, err, failure); p != nil {
			return p
		}
	}
	return failure
}

// settle gives the handler's result to the holder, and waits until the holder has ended. It returns
// how the lock ended, or nil if the handler never had the lock.
func (s *guardedStream) settle(result error) error {
	s.mu.Lock()
	asked, granted := s.asked, s.granted
	s.over, s.result = true, result
	close(s.returned)
	s.mu.Unlock()
	if !asked {
		return nil
	}
	if !granted { // no holder got the lock before the handler returned
		s.end(errReturned)
	}
	<-s.released
	if !granted {
		return nil
	}
	return s.outcome
}

// errReturned ends the wait for a lock that is not needed any more.
var errReturned = errors.New("the handler returned before its stream had the lock")

// Context returns the stream's context. The context has the lease as soon as the lock is held,
// even if the handler asked for the context before.
func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message. The first message takes the lock. When the lock is lost, RecvMsg
// returns, and a message that comes later is dropped with the stream. Such a message may still be
// written to m, so a caller must not use m again after an error.
func (s *guardedStream) RecvMsg(m any) error {
	err := s.await(func() error { return s.ServerStream.RecvMsg(m) })
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	switch {
	case asked:
		return err
	case err != nil: // otherwise a client could choose that the handler finishes without its lock
		return s.refuse(errNoMessage)
	}
	s.call.req = m
	return s.acquire()
}

var errNoMessage = fmt.Errorf("%w: the stream has ended without a message, and its key needs one", locker.ErrInvalidKey)

// SendMsg sends a message. When the lock is lost, SendMsg returns although the client has not read.
func (s *guardedStream) SendMsg(m any) error {
	return s.await(func() error { return s.ServerStream.SendMsg(m) })
}

// errExited is the result of a goroutine that runtime.Goexit has ended.
var errExited = errors.New("the goroutine ended by runtime.Goexit")

// await calls f on a goroutine of its own, because f waits for the client. If the stream's context
// ends first, await returns, and f ends later with the connection. f need not obey the context: it
// may be the stream of an interceptor that has set a time limit.
func (s *guardedStream) await(f func() error) error {
	if ended := s.ended(); ended != nil {
		return ended
	}
	type result struct {
		err      error
		panicked any
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errExited}
		defer func() {
			r.panicked = recover()
			done <- r
		}()
		r.err = f()
	}()
	select {
	case r := <-done:
		if r.panicked != nil {
			panic(r.panicked) // here, on the handler's goroutine, a recovery interceptor can catch it
		}
		if stopped := s.stopped(); stopped != nil {
			return stopped
		}
		return r.err
	case <-s.ctx.Done():
		return s.ended()
	}
}

// ended returns why the handler can neither receive nor send any more; nil while it can.
func (s *guardedStream) ended() error {
	if stopped := s.stopped(); stopped != nil {
		return stopped
	}
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// stop ends the stream's context, and returns the first reason for which it was ended.
func (s *guardedStream) stop(reason error) error {
	if s.failed.CompareAndSwap(nil, &reason) {
		s.end(reason)
	}
	return *s.failed.Load()
}

// stopped returns why the handler must stop. It returns nil while the handler may continue, and
// also after the handler's client has disconnected.
func (s *guardedStream) stopped() error {
	if failed := s.failed.Load(); failed != nil {
		return *failed
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

// streamContext is the context of a stream that may take its lock only after the handler has asked
// for the context. The context ends with the stream or with the lock, and has the lease as soon as
// the lock is held.
type streamContext struct {
	context.Context
	end   context.CancelCauseFunc         // ends Context, and Run's context
	lease atomic.Pointer[context.Context] // Run's context, which descends from Context
}

func (c *streamContext) hold(ctx context.Context) { c.lease.Store(&ctx) }

// look ends the context if the lease is over. After a pause, the goroutine that acquire has left
// for this may run a little later than the handler.
func (c *streamContext) look() {
	if ctx := c.lease.Load(); ctx != nil && (*ctx).Err() == context.Canceled {
		c.end(context.Cause(*ctx))
	}
}

// Err looks at the lease, as a look at Run's context does.
func (c *streamContext) Err() error {
	c.look()
	return c.Context.Err()
}

// Done looks at the lease, as a look at Run's context does.
func (c *streamContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// Value returns values of Run's context, such as the lease, as soon as the lock is held; before
// that, it returns values of the stream's context.
func (c *streamContext) Value(name any) any {
	if ctx := c.lease.Load(); ctx != nil {
		return (*ctx).Value(name)
	}
	return c.Context.Value(name)
}

// AfterFunc lets package context watch c without a goroutine. Package context needs this method,
// because Value can return a value of another context than c.
func (c *streamContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(c.Context, f)
}
