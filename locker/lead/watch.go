package lead

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// An Inspector shows the holder of a key. A *locker.Engine is an Inspector.
type Inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// Watch yields the leader at once, and then at each change, until ctx ends. Info.Held reports
// whether a process leads. Info.Metadata identifies the leader, and Info.Fence and Info.Since
// describe its term. Watch asks the server every second. If a third of the time that the leader's
// lease has left is more than a second, Watch waits for that third instead, but at most 10 s.
//
// The yielded leader may be out of date, so do not base critical decisions on it. Only the fence
// proves which process leads. While the server is unavailable, Watch yields the error once, and
// continues. Watch ends after ErrInvalidKey, ErrUnsupported and ErrClosed.
func Watch(ctx context.Context, i Inspector, key string) iter.Seq2[locker.Info, error] {
	return watch(ctx, i, key, func() <-chan struct{} { return nil })
}

// Watch does the work of the function [Watch] for the key of this Leader. In addition, this
// method asks the server at once when a term of this process begins or ends. The Locker must be
// an [Inspector].
func (l *Leader) Watch(ctx context.Context) iter.Seq2[locker.Info, error] {
	i, ok := l.locker.(Inspector)
	if !ok {
		return refuseToWatch(l.rule.Key, fmt.Sprintf("%T cannot show the holder of a key; call lead.Watch with the *locker.Engine inside it", l.locker))
	}
	return watch(ctx, i, l.rule.Key, l.changeSignal)
}

// refuseToWatch returns a sequence of one error, which names key and the reason.
func refuseToWatch(key, reason string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		yield(locker.Info{}, &locker.Error{Op: locker.OpInspect, Key: key, Err: fmt.Errorf("%w: %s", locker.ErrUnsupported, reason)})
	}
}

// watch asks i for the holder of key again and again until ctx ends, and yields each change. The
// function change returns a channel that is closed when watch should ask at once.
func watch(ctx context.Context, i Inspector, key string, change func() <-chan struct{}) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		var last locker.Info
		var failed, told bool
		for {
			changed := change() // called before the question, so that no change is missed
			info, err := i.Inspect(ctx, key)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if !failed && !yield(locker.Info{}, err) || isFinal(err) {
					return
				}
				failed = true
			case !told || failed || !sameLeader(last, info):
				if !yield(info, nil) {
					return
				}
				last, told, failed = info, true, false
			}
			if !wait(ctx, changed, untilNext(info)) {
				return
			}
		}
	}
}

// sameLeader reports whether a and b show the same leader.
func sameLeader(a, b locker.Info) bool {
	return a.Held == b.Held && a.Kept == b.Kept && a.Foreign == b.Foreign && a.Fence == b.Fence && a.Metadata == b.Metadata
}

// untilNext returns the pause before Watch asks the server again, after the answer info.
func untilNext(info locker.Info) time.Duration {
	const shortest, longest = time.Second, 10 * time.Second
	return min(max(shortest, info.Left/3), longest)
}

// wait waits until d has passed or the channel changed, which may be nil, is closed. It returns
// false if ctx has ended.
func wait(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
