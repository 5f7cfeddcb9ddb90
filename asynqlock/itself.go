package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// A rule that throws tasks away must know a task from its duplicates. asynq delivers a task again without counting a retry when its
// server stops while the handler is at work, and the key may be busy with that run then, or with what it left behind: a lease
// that is not yet over, or one that is kept for AtLeast. So such a task is run under a second lock, on its own ID, which lasts longer.

// beside runs the handler under both locks. It is for a task of which nobody knows that it has run before.
func (j *job) beside(ctx context.Context) error {
	text, err := ownID.Key(ctx, &j.message)
	if err != nil {
		return err
	}
	own := locker.Rule{Key: text, Name: ownID.Name(), TTL: j.rule.lock.TTL, Wait: locker.NoWait}
	alone := false
	refused := locker.Run(ctx, j.guard.guard.Locker, own, func(ctx context.Context) error {
		alone = true
		lease, _ := locker.FromContext(ctx)
		ttl := time.Until(lease.Expires())
		err = j.run(ctx, func(ctx context.Context) { j.outlive(ctx, lease, ttl) })
		return err
	})
	switch {
	case alone:
		if rest := time.Until(j.began.Add(j.lock.AtLeast)); j.ran && j.failed != nil && rest >= time.Millisecond {
			own.AtLeast = rest // best effort: whoever cannot be asked now may soon be asked again
			_ = locker.Run(context.WithoutCancel(ctx), j.guard.guard.Locker, own, func(context.Context) error { return nil })
		}
		return err
	case errors.Is(refused, locker.ErrBusy):
		j.before = true
		return &running{refused}
	default:
		return refused
	}
}

// outlive makes own, which was granted for ttl, last longer than the lock under which the handler runs, should this process die: twice as
// long, for one may have been renewed a moment ago and the other not for a third of its time. Where locker.WithMaxTTL refuses that, they
// last equally long.
func (j *job) outlive(ctx context.Context, own *locker.Lease, ttl time.Duration) {
	long := max(ttl, j.lock.TTL, j.lock.AtLeast)
	if errors.Is(own.Extend(ctx, 2*long), locker.ErrInvalidRule) {
		_ = own.Extend(ctx, long)
	}
}

// running says that an earlier run of the same task holds its lock.
type running struct{ error }

func (r *running) Unwrap() error { return r.error }
