package asynqlock

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
)

// errStopped ends the waits of tasks.
var errStopped = errors.New("the Guard was stopped, because this process stops")

// Stop ends the waits of tasks for their keys. The tasks are put off, for another process, without
// using a retry; a task that cannot be put off is put back by asynq when the server's
// ShutdownTimeout is over. Handlers go on, and tasks that the server still starts get their lock if
// it is free. Call Stop before the Shutdown of the Guard's servers, which otherwise waits for these
// tasks, or let [Guard.Run] do both. Stop returns when the Guard's goroutines have ended, or ctx.
func (g *Guard) Stop(ctx context.Context) error {
	g.stop()
	if g.waker == nil {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.waker.end()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run runs a server until ctx ends: it starts the server, and then stops the Guard and shuts the
// server down. A Guard that was stopped puts tasks off whose key is busy, and never waits; so use
// one Guard for the servers that stop together.
func (g *Guard) Run(ctx context.Context, server *asynq.Server, handler asynq.Handler) error {
	if err := server.Start(handler); err != nil {
		return err
	}
	<-ctx.Done()
	_ = g.Stop(context.WithoutCancel(ctx)) // its goroutines end when their calls to Redis do
	server.Shutdown()
	return nil
}
