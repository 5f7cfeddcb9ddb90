package asynqlock

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
)

// errStopped is the error of waits that Guard.Stop ends.
var errStopped = errors.New("the Guard was stopped, because this process stops")

// Stop ends the waits of tasks for their keys. These tasks are put off without using a retry, so
// that another process runs them. A task that cannot be put off stays in its worker until the
// server's ShutdownTimeout is over. Then asynq requeues the task. Running handlers continue. A task
// that the server starts after Stop gets its lock if the lock is free.
//
// Call Stop before the Shutdown of the Guard's servers, or let [Guard.Run] do both. Otherwise
// Shutdown waits for the tasks that wait for their keys. Stop returns when the Guard's goroutines
// have ended, or when ctx ends.
func (g *Guard) Stop(ctx context.Context) error {
	g.stop()
	if g.waker == nil {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.waker.awaitEnd()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run runs a server until ctx ends. Then it stops the Guard and shuts the server down. A stopped
// Guard puts off every task whose key is busy, and never waits. So use one Guard only for servers
// that stop together.
func (g *Guard) Run(ctx context.Context, server *asynq.Server, handler asynq.Handler) error {
	if err := server.Start(handler); err != nil {
		return err
	}
	<-ctx.Done()
	_ = g.Stop(context.WithoutCancel(ctx)) // needs no time limit, because the Guard's goroutines end as soon as their calls to Redis have ended
	server.Shutdown()
	return nil
}
