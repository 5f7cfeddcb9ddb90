package locker

import (
	"context"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/locker/store"
)

// Inspect returns the present holder of key. The answer may be out of date when it arrives, because
// Inspect does not lock the key.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Inspect(ctx context.Context, key string) (Info, error) {
	if e.can.Inspect == nil {
		return Info{}, &Error{Op: OpInspect, Key: key, Err: ErrUnsupported}
	}
	info, err := administer(ctx, e, OpInspect, key, func(l string) (Info, error) { return e.can.Inspect(ctx, l) })
	info.Traceparent, info.Metadata = store.Signature(info.Metadata)
	for i := range info.Permits {
		p := &info.Permits[i]
		p.Traceparent, p.Metadata = store.Signature(p.Metadata)
	}
	return info, err
}

// Inspect returns the present holder of the lease's key, as [Engine.Inspect] does. This method is
// for code that has a lease but not the Locker of the lease. If the lease is still held, Inspect
// returns Held and the lease's Fence.
func (l *Lease) Inspect(ctx context.Context) (Info, error) {
	return l.engine.Inspect(ctx, l.root().rule.Key)
}

// Keys returns, sorted, the keys that now have a holder or waiters or are kept by Rule.KeepFor.
// pattern is a glob-style pattern of Redis, such as "order:*"; "*" matches all keys. Keys looks at
// all keys of the server, in many steps that do not block the server (SCAN). On a server with many
// keys, Keys takes seconds, so use it for operators and not in each request. A key that is locked
// or freed while Keys runs may be missing. If another library holds a key, the key is listed only
// while a waiter of latchkit waits for it.
//
// The end of ctx ends the call. Errors: ErrUnavailable, ErrUnsupported, ErrClosed, ctx.Err().
func (e *Engine) Keys(ctx context.Context, pattern string) ([]string, error) {
	if e.can.Keys == nil {
		return nil, &Error{Op: OpInspect, Err: ErrUnsupported}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the scan ends when this function returns
	all, err := inquire(ctx, e, OpInspect, "", func() ([]string, error) { return e.can.Keys(ctx, literal.Replace(e.cfg.prefix)+pattern) })
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], e.cfg.prefix)
	}
	return all, err
}

// literal escapes a text, so that the resulting pattern matches only this text.
var literal = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// Waiter is an entry in the queue of a key.
type Waiter = store.Waiter

// Queue returns the waiters of key that the server knows now. The waiter whose turn comes next is
// the first. Callers of one process that wait for a key on equal terms usually share one entry.
// A Locker on several servers promises no order, and keeps no metadata of waiters.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Queue(ctx context.Context, key string) ([]Waiter, error) {
	if e.can.Queue == nil {
		return nil, &Error{Op: OpInspect, Key: key, Err: ErrUnsupported}
	}
	all, err := administer(ctx, e, OpInspect, key, func(l string) ([]Waiter, error) { return e.can.Queue(ctx, l) })
	for i := range all {
		all[i].Metadata = unsigned(all[i].Metadata)
	}
	return all, err
}

// Revoke takes the lease of key away from the holder with this fence, which [Engine.Inspect] shows.
// The holder learns of the revocation (ErrRevoked) at its next renewal, or at its deadline if the
// lease is not renewed. Until then the holder may continue to work, so let the database check the
// fence. reason is shown to the holder, so do not put secrets in it.
//
// Errors: ErrGone when no holder has that fence any more, so that a repeated Revoke cannot hit
// another holder; ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Revoke(ctx context.Context, key string, fence uint64, reason string) error {
	if err := store.CheckKey(e.cfg.prefix + key); err != nil {
		return &Error{Op: OpRevoke, Key: key, Err: err}
	}
	ctx, end := e.cfg.observe(ctx, OpRevoke, Rule{Key: key, Name: Rule{Key: key}.name()})
	err := e.revoke(ctx, key, fence, reason)
	if end != nil {
		finish(end, Outcome{Result: resultOf(OpRevoke, err), Err: err, Fence: fence, Calls: 1})
	}
	return err
}

// revoke does the work of Revoke.
func (e *Engine) revoke(ctx context.Context, key string, fence uint64, reason string) error {
	if e.can.Revoke == nil {
		return &Error{Op: OpRevoke, Key: key, Err: ErrUnsupported}
	}
	g, err := administer(ctx, e, OpRevoke, key, func(l string) (store.Grant, error) { return e.can.Revoke(ctx, l, fence, reason) })
	if err == nil && g.State != store.Released {
		return &Error{Op: OpRevoke, Key: key, Err: fmt.Errorf("%w: fence %d; look again with Inspect", ErrGone, fence)}
	}
	return err
}

// RaiseFence makes the next fence of key larger than atLeast. Use RaiseFence if the server has lost
// its counter and the database remembers a larger fence. RaiseFence never lowers the fence. A
// server that loses its data forgets the raised fence, and its next fence begins at its clock. So
// if atLeast is above the clock, call RaiseFence again after such a loss. On a quorum, a rolling
// restart without persistence is such a loss.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	if e.can.RaiseFence == nil {
		return &Error{Op: OpRaiseFence, Key: key, Err: ErrUnsupported}
	}
	_, err := administer(ctx, e, OpRaiseFence, key, func(l string) (struct{}, error) {
		return struct{}{}, e.can.RaiseFence(ctx, l, atLeast)
	})
	return err
}

// Nodes asks the nodes of a quorum for their state: which nodes vote, why the other nodes do not
// vote, and for how long they will not vote. Like an acquire, Nodes also performs the steps that
// let a node vote again. ctx limits the whole wait, and [WithNodeTimeout] limits the wait for each
// node. Of a server or a Cluster, Nodes returns what this process knows: one node, with the reason
// why its waiters poll. A Store without subscriptions returns [ErrUnsupported].
func (e *Engine) Nodes(ctx context.Context) ([]store.Node, error) {
	if e.can.Nodes == nil {
		return nil, &Error{Op: OpInspect, Err: ErrUnsupported}
	}
	if !e.acquires.Enter() {
		return nil, &Error{Op: OpInspect, Err: ErrClosed}
	}
	defer e.acquires.Leave()
	nodes, err := e.can.Nodes(ctx)
	if err != nil {
		return nodes, &Error{Op: OpInspect, Err: err}
	}
	return nodes, nil
}

// administer makes call, one call about key, and stops waiting for the answer when ctx ends. The
// function call gets the key with the Locker's prefix.
func administer[T any](ctx context.Context, e *Engine, op Op, key string, call func(l string) (T, error)) (T, error) {
	var none T
	l := e.cfg.prefix + key
	if err := store.CheckKey(l); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	return inquire(ctx, e, op, key, func() (T, error) { return call(l) })
}

// inquire makes call once, and stops waiting for the answer when ctx ends.
func inquire[T any](ctx context.Context, e *Engine, op Op, key string, call func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	select {
	case <-e.closing:
		return none, &Error{Op: op, Key: key, Err: ErrClosed}
	default:
	}
	var value T
	var err error
	answered := make(chan struct{})
	e.calls.Do(func() {
		defer close(answered)
		value, err = call()
	})
	select {
	case <-answered:
		if err != nil {
			return none, &Error{Op: op, Key: key, Err: asUnavailable(err)}
		}
		return value, nil
	case <-ctx.Done():
		return none, &Error{Op: op, Key: key, Err: ctx.Err()}
	}
}
