package asynqlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// Configure returns cfg with changes for tasks that are put off. For these tasks, IsFailure
// returns false, RetryDelayFunc returns the Problem's RetryAfter, and ErrorHandler is not called
// for a busy key. cfg's own functions decide on all other errors.
//
// If it is 0 in cfg, Configure sets DelayedTaskCheckInterval to 1 s (asynq's default is 5 s), so
// that tasks come back soon after their pauses. With [WithWaking], it sets TaskCheckInterval to 50
// ms (asynq's default is 1 s), because a called task waits for a worker for up to 1.5 times as long.
// An idle server of one queue then sends about 50 commands a second to Redis instead of 8.
//
// A server that was not configured counts every error as a failure. So its tasks wait in their
// workers, like tasks without a retry left, and the Guard logs an error once.
func (g *Guard) Configure(cfg asynq.Config) asynq.Config {
	isFailure, retryDelay, handler, base := cfg.IsFailure, cfg.RetryDelayFunc, cfg.ErrorHandler, cfg.BaseContext
	if g.waker != nil && cfg.TaskCheckInterval <= 0 {
		cfg.TaskCheckInterval = 50 * time.Millisecond
	}
	if cfg.DelayedTaskCheckInterval <= 0 {
		cfg.DelayedTaskCheckInterval = time.Second
	}
	cfg.IsFailure = func(err error) bool {
		if p, ok := errors.AsType[*Problem](err); ok && p.Verdict == Snoozed {
			return false
		}
		if isFailure != nil {
			return isFailure(err)
		}
		return err != nil
	}
	if retryDelay == nil {
		retryDelay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if p, ok := errors.AsType[*Problem](err); ok && p.Verdict == Snoozed {
			return p.RetryAfter
		}
		return retryDelay(n, err, t)
	}
	if handler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if p, ok := errors.AsType[*Problem](err); ok && (p.Verdict == Snoozed || p.Verdict == Dropped) &&
				slices.Contains([]string{CodeBusy, CodeRunning, CodeDone}, p.Code) {
				return // two tasks wanted the same key, which is normal
			}
			handler.HandleError(ctx, t, err)
		})
	}
	look := cfg.DelayedTaskCheckInterval
	cfg.BaseContext = func() context.Context {
		ctx := context.Background()
		if base != nil {
			ctx = base()
		}
		return context.WithValue(ctx, configuredKey{g}, look)
	}
	return cfg
}

// configuredKey is a key of context values. The value is the DelayedTaskCheckInterval of a server
// that this Guard configured.
type configuredKey struct{ *Guard }

// warnUnconfigured logs once that a server of asynq was not configured.
func (g *Guard) warnUnconfigured(ctx context.Context) {
	if _, ok := ctx.Value(configuredKey{g}).(time.Duration); ok {
		return
	}
	g.warned.Do(func() {
		slog.Error("latchkit: asynqlock: this server of asynq was not configured by the Guard, so a task whose key is busy may keep its worker; " +
			"make the server with asynq.NewServer(redis, guard.Configure(asynq.Config{…}))")
	})
}
