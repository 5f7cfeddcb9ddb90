package cronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"
)

// An Option sets up [Once].
type Option func(*config)

// config holds what the options set.
type config struct {
	base      context.Context
	makesUp   bool
	makeUpFor time.Duration // the window, if makesUp is true
	noOverlap bool
	window    time.Duration
	skew      time.Duration
	logger    *slog.Logger
}

// WithMakeUp makes another process run a tick again if its process died or its job returned an
// error. The other processes wait at most for window until the first process has run the tick, and
// then skip the tick. So window must be longer than the job and the TTL together: if the first
// process dies near the end of the job, its key becomes free only a TTL later. The window replaces
// that of [WithWindow]. A tick that succeeded does not run again. A tick may run twice, so a second
// run of the job must be harmless.
func WithMakeUp(window time.Duration) Option {
	return func(c *config) { c.makesUp, c.makeUpFor = true, window }
}

// WithNoOverlap skips a tick while the job of an earlier tick still runs, in any process. With
// [WithMakeUp], the tick is not skipped, but waits for the end of the earlier job, at most for the
// window.
func WithNoOverlap() Option { return func(c *config) { c.noOverlap = true } }

// WithWindow sets how long a tick is remembered. In this time after its start, no other process
// starts the tick. Default: 30 s.
func WithWindow(d time.Duration) Option { return func(c *config) { c.window = d } }

// WithMaxSkew sets by how much the clocks of two processes can differ. It must be less than the
// window of [WithWindow] or [WithMakeUp]. Default: 5 s.
func WithMaxSkew(d time.Duration) Option { return func(c *config) { c.skew = d } }

// WithBase sets the parent of the jobs' contexts. When ctx ends, the jobs' contexts end too.
// Default: context.Background.
func WithBase(ctx context.Context) Option { return func(c *config) { c.base = ctx } }

// WithLogger sets the logger for errors of jobs, and for skipped ticks. Default: slog.Default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// configure applies the options, and refuses invalid arguments.
func (e *entry) configure(c *cron.Cron, opts []Option) error {
	for _, o := range opts {
		o(&e.cfg)
	}
	if e.cfg.makesUp {
		e.cfg.window = e.cfg.makeUpFor
	}
	switch {
	case e.locker == nil:
		return errors.New("the Locker is nil; make one with locker.New, and check its error")
	case e.name == "":
		return errors.New("the name is empty; give a name that all processes use for this job")
	case e.cfg.skew < 0 || e.cfg.window <= e.cfg.skew+e.cfg.window/100:
		return fmt.Errorf("a window of %v with WithMaxSkew(%v); the window must be longer than the skew", e.cfg.window, e.cfg.skew)
	}
	return nil
}
