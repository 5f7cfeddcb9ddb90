package link

import (
	"context"
	"time"
)

// Sender makes calls and waits for their answers. A [Links] is a Sender.
type Sender interface {
	Do(ctx context.Context, c *Call) (string, error)
}

var _, _ Sender = (*Links)(nil), Plain{}

// Plain makes each call on the goroutine of its caller. Only the client's time-outs limit how
// long a call takes.
type Plain struct{ Client Client }

// Do makes the call. The call ends with ctx only if the client's options make calls end with their
// contexts.
func (p Plain) Do(ctx context.Context, c *Call) (string, error) {
	c.sent = time.Now()
	cmd := c.command(ctx, false)
	text, err := resultOf(cmd, p.Client.Process(ctx, cmd))
	if c.lacksScript(err) {
		cmd = c.command(ctx, true)
		text, err = resultOf(cmd, p.Client.Process(ctx, cmd))
	}
	return text, err
}
