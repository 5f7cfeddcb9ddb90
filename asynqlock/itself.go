package asynqlock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker"
)

// A rule that drops or archives tasks must distinguish a task from its duplicates. When a server
// stops while a handler runs, asynq delivers the task again without counting a retry. Then the key
// may be busy with the earlier run of that task, or with the lease that the run left behind. So the
// metadata of the lease names its task. In two cases the task holds a second lock, on its own ID:
// if the Locker cannot show this metadata, and if AtLeast keeps the key busy after the run. The
// second lock lasts longer than the first.

// runNamed runs the handler under a lease whose metadata names the task.
func (j *job) runNamed(ctx context.Context) error {
	name, err := ownID.Key(ctx, &j.message)
	if err != nil {
		return err
	}
	if len(name) > longestName {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:])
	}
	j.lock.Metadata = name
	err = j.run(ctx, func(context.Context) {})
	if j.ran || !errors.Is(err, locker.ErrBusy) {
		return err
	}
	e, _ := errtype.As[*locker.Error](err)
	if e != nil && e.HolderMetadata == name || (e == nil || e.HolderMetadata == "") && !j.guard.showsHolders(ctx, j.lock.Key) {
		j.ranBefore = true
		return &alreadyRunning{err}
	}
	return err
}

// longestName is the length of the longest metadata that a Locker keeps.
const longestName = 256

// inspector is a Locker that can show the holder of a key.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// showsHolders reports whether the Locker can show the holder of key. If the Locker cannot, all
// tasks use second locks from then on.
func (g *Guard) showsHolders(ctx context.Context, key string) bool {
	i, ok := g.locker.(inspector)
	if !ok {
		g.blind.Store(true)
		return false
	}
	_, err := i.Inspect(ctx, key)
	if errors.Is(err, locker.ErrUnsupported) {
		g.blind.Store(true)
	}
	return err == nil
}

// runWithOwnLock runs the handler under two locks: of the key, and of the task's own ID. It is
// called for tasks that are not known to have run before.
func (j *job) runWithOwnLock(ctx context.Context) error {
	text, err := ownID.Key(ctx, &j.message)
	if err != nil {
		return err
	}
	own := locker.Rule{Limit: min(j.lock.Limit, 1), Key: text, Name: ownID.Name(), TTL: j.rule.lock.TTL, Wait: locker.NoWait}
	alone := false
	refused := locker.Run(ctx, j.guard.locker, own, func(ctx context.Context) error {
		alone = true
		lease, _ := locker.FromContext(ctx)
		ttl := time.Until(lease.Expires())
		err = j.run(ctx, func(ctx context.Context) { j.outlive(ctx, lease, ttl) })
		return err
	})
	switch {
	case alone:
		if rest := time.Until(j.began.Add(j.lock.AtLeast)); j.ran && j.handlerErr != nil && rest >= time.Millisecond {
			own.AtLeast = rest // an error is ignored, and the call is not repeated
			_ = locker.Run(context.WithoutCancel(ctx), j.guard.locker, own, func(context.Context) error { return nil })
		}
		return err
	case errors.Is(refused, locker.ErrBusy):
		j.ranBefore = true
		return &alreadyRunning{refused}
	default:
		return refused
	}
}

// outlive extends own, which was granted for ttl, so that own ends after the handler's lock if
// this process dies. own is extended to twice ttl. The reason is that the last renewal of own may
// be a third of its TTL older than the last renewal of the handler's lock. If locker.WithMaxTTL
// does not allow twice ttl, both locks last equally long.
func (j *job) outlive(ctx context.Context, own *locker.Lease, ttl time.Duration) {
	long := max(ttl, j.lock.TTL, j.lock.AtLeast)
	if errors.Is(own.Extend(ctx, 2*long), locker.ErrInvalidRule) {
		_ = own.Extend(ctx, long)
	}
}

// alreadyRunning is the error of a task whose earlier run still holds the lock.
type alreadyRunning struct{ error }

func (r *alreadyRunning) Unwrap() error { return r.error }
