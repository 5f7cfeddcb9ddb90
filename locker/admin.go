package locker

import (
	"context"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/internal/store"
)

// The types below are those of the contract between the Engine and the kinds of lock, with their
// fields as comments, because pages of documentation do not show the fields of an alias.
type (
	// Info says who holds a key: see [Engine.Inspect].
	//
	//	Held     bool
	//	Kept     bool // the lease was released, but Rule.KeepFor keeps the key
	//	Foreign  bool // another library or program holds the key; below, only Left is known
	//	Mode     Mode
	//	Fence    uint64        // the fence that Revoke needs
	//	Since    time.Time     // when the lease was granted, by the server's clock; zero when unknown
	//	Left     time.Duration // the time until the lease ends unless renewed; < 0: it has no end
	//	Waiters  int           // the number of entries in the server's queue
	//	Readers  int           // with Mode Shared: how many leases share the key, usually one for each process
	//	Metadata string        // as Since, of the first reader of the phase
	//	Traceparent string     // the span under which the holder took the key, if its Observer has stored it
	//
	//	Reading []Reader // with Mode Shared: the leases, in the order in which they run out
	//
	//	// The permits of a semaphore, in the order in which they run out. Fence is that of the first
	//	// permit since the key was free; all other fields above are about the one that runs out first.
	//	Permits []Permit
	//	Used    int // how many units of a semaphore are held
	//	Limit   int // the smallest Limit of the permits that are held
	Info = store.Info

	// Reader is one of the leases that share a key.
	//
	//	Left    time.Duration // the time until the lease runs out unless renewed
	//	Process int           // readers with the same number are in one process; 0: no message reaches it
	Reader = store.Reader

	// Permit is one holder's units of a semaphore. Fields that are not listed are as in Info.
	//
	//	Weight int  // how many units the permit holds
	//	Limit  int  // how many units may be held at once, by the Rule of the permit's holder
	//	Kept   bool // the permit was released, but Rule.KeepFor keeps its units
	//	Fence, Since, Left, Metadata, Traceparent
	Permit = store.Permit

	// Waiter is an entry in the queue of a key: see [Engine.Queue]. Callers of one process that
	// wait for a key on equal terms usually share one entry.
	//
	//	Mode     Mode
	//	Since    time.Time // when the waiter began to wait, by the server's clock; zero when unknown
	//	Handed   bool      // the key was handed to the waiter, and the waiter has not confirmed yet
	//	Gone     bool      // the waiter's process does not listen any more, so its turn passes on
	//	Process  int       // the number of the waiter's process in this answer, from 1; 0: the waiter polls
	//	Metadata string    // "" if the Store keeps no metadata of waiters
	//	Weight   int       // how many units of a semaphore the waiter needs; 0: it waits for a lock
	//	Limit    int       // how many units may be held at once, by the waiter's Rule
	Waiter = store.Waiter

	// Node is the state of one node of a quorum, or of the only server, as this process sees it:
	// see [Engine.Nodes].
	//
	//	Index  int    // the place in the list of clients, from 0
	//	Addr   string // the address that the node's client connects to; "" when it is not known
	//	State  NodeState
	//	Reason string        // why the node does not vote, and what to do; "" when it votes
	//	Left   time.Duration // until the node votes if nothing else happens; 0: it votes, or unknown
	//	Offset time.Duration // from the median of all nodes' clocks
	//	Polls  string        // why this process' waiters poll; "" while they get messages
	Node = store.Node

	// NodeState is [NodeVotes], or a word that says why a node does not vote: joins, clock,
	// stranger, twice, evicts, unsupported, unreachable.
	NodeState = store.NodeState

	// A Warning reports a setting of the server that can lose locks: see [Warner].
	//
	//	Code string // a code with few values, such as "eviction-policy"
	//	Text string // the problem, and what to do
	Warning = store.Warning
)

// NodeVotes is the state of a node that votes.
const NodeVotes = store.NodeVotes

// errUnable is the error of an operation that the Locker's server or library does not have.
var errUnable = fmt.Errorf("%w by this Locker", ErrUnsupported)

// Inspect returns the present holder of key. The answer may be out of date when it arrives.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Inspect(ctx context.Context, key string) (Info, error) {
	if e.can.Inspect == nil {
		return Info{}, &Error{Op: OpInspect, Key: key, Err: errUnable}
	}
	info, err := administer(ctx, e, OpInspect, key, func(l string) (Info, error) { return e.can.Inspect(ctx, l) })
	info.Traceparent, info.Metadata = store.Signature(info.Metadata)
	for i := range info.Permits {
		p := &info.Permits[i]
		p.Traceparent, p.Metadata = store.Signature(p.Metadata)
	}
	return info, err
}

// Inspect returns the present holder of the lease's key, as [Engine.Inspect] does, for code that
// has no Locker. If the lease is still held, it returns Held and the lease's Fence.
func (l *Lease) Inspect(ctx context.Context) (Info, error) {
	return l.engine.Inspect(ctx, l.root().rule.Key)
}

// Keys returns, sorted, the keys that now have a holder or waiters or are kept by Rule.KeepFor.
// pattern is a glob-style pattern of Redis, such as "order:*". Keys looks at all keys of the
// server, in many steps that do not block the server (SCAN), which may take seconds: it is for
// operators. A key that is locked or freed meanwhile may be missing. A key that another library
// holds is listed only while a waiter of latchkit waits for it.
//
// The end of ctx ends the call. Errors: ErrUnavailable, ErrUnsupported, ErrClosed, ctx.Err().
func (e *Engine) Keys(ctx context.Context, pattern string) ([]string, error) {
	if e.can.Keys == nil {
		return nil, &Error{Op: OpInspect, Err: errUnable}
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

// Queue returns the waiters of key that the server knows now, the next one first. A Locker on
// several servers promises no order, and keeps no metadata of waiters.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Queue(ctx context.Context, key string) ([]Waiter, error) {
	if e.can.Queue == nil {
		return nil, &Error{Op: OpInspect, Key: key, Err: errUnable}
	}
	all, err := administer(ctx, e, OpInspect, key, func(l string) ([]Waiter, error) { return e.can.Queue(ctx, l) })
	for i := range all {
		all[i].Metadata = unsigned(all[i].Metadata)
	}
	return all, err
}

// Revoke takes the lease of key away from the holder with this fence, which [Engine.Inspect] shows.
// The holder learns of it (ErrRevoked) at its next renewal, or at its deadline if the lease is not
// renewed, so let the database check the fence. reason is shown to the holder: put no secret in it.
//
// Errors: ErrGone when no holder has that fence any more, so that a repeated Revoke cannot hit
// another holder; ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Revoke(ctx context.Context, key string, fence uint64, reason string) (err error) {
	ctx, end := e.cfg.observe(ctx, OpRevoke, Rule{Key: key, Name: Rule{Key: key}.name()})
	if end != nil {
		defer func() { finish(end, Outcome{Result: resultOf(OpRevoke, err), Err: err, Fence: fence, Calls: 1}) }()
	}
	if e.can.Revoke == nil {
		return &Error{Op: OpRevoke, Key: key, Err: errUnable}
	}
	g, err := administer(ctx, e, OpRevoke, key, func(l string) (store.Grant, error) { return e.can.Revoke(ctx, l, fence, reason) })
	if err == nil && g.State != store.Released {
		return &Error{Op: OpRevoke, Key: key, Err: fmt.Errorf("%w: fence %d; latchctl show %s", ErrGone, fence, key)}
	}
	return err
}

// RaiseFence makes the next fence of key larger than atLeast, for a server that has lost its
// counter while the database remembers a larger fence. It never lowers the fence. If atLeast is
// above the server's clock, call RaiseFence again after each loss of the server's data; on a
// quorum, a rolling restart without persistence is such a loss.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	if e.can.RaiseFence == nil {
		return &Error{Op: OpRaiseFence, Key: key, Err: errUnable}
	}
	_, err := administer(ctx, e, OpRaiseFence, key, func(l string) (struct{}, error) {
		return struct{}{}, e.can.RaiseFence(ctx, l, atLeast)
	})
	return err
}

// Nodes asks the nodes of a quorum for their state: which nodes vote, why the others do not, and
// for how long. It changes nothing: only a request for a lock lets a node begin its wait. ctx
// limits the whole wait, and [WithNodeTimeout] the wait for each node. Without a quorum, it returns
// one node, the server or the Cluster, with the reason why its waiters poll. A Store without
// subscriptions returns [ErrUnsupported].
func (e *Engine) Nodes(ctx context.Context) ([]Node, error) {
	if e.can.Nodes == nil {
		return nil, &Error{Op: OpInspect, Err: errUnable}
	}
	return inquire(ctx, e, OpInspect, "", func() ([]Node, error) { return e.can.Nodes(ctx) })
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
	if e.isClosing() {
		return none, &Error{Op: op, Key: key, Err: ErrClosed}
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
