package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// WithReplicaAck counts a lease as granted, renewed or extended only when n replicas have acknowledged it within the time
// given. A grant with too few acknowledgements is undone and fails with ErrUnavailable; a renewal with too few did not
// happen, so the lease ends in time if that goes on. So what a holder relies on is known to n replicas, and a failover to
// one of them loses no lease. A failover to another one still may: Redis chooses by itself. Let the data check the fence.
//
// The price: an acquire and a batch of renewals last until the replicas have answered, and a grant that was told by
// message is asked for once more. Acquires then do not travel the way of [WithAutoPipeline]. within must be shorter than the
// ReadTimeout of the client, which must be able to pipeline, as those of go-redis are. Default: grants count at once.
func WithReplicaAck(n int, within time.Duration) Option {
	return func(c *config) { c.acks = acks{asked: true, replicas: n, within: within} }
}

// acks are the acknowledgements that a lease needs. The zero value needs none.
type acks struct {
	asked    bool
	replicas int
	within   time.Duration
}

func (a acks) sensible() bool { return a.replicas >= 1 && a.within >= time.Millisecond }

// suit says whether a client can wait for acknowledgements.
func (a acks) suit(c Client) error {
	if !a.asked {
		return nil
	}
	if _, ok := c.(pipeliner); !ok {
		return fmt.Errorf("latchkit: WithReplicaAck: a %T has no Pipeline; give a *redis.Client or a *redis.ClusterClient", c)
	}
	timeout := time.Duration(0)
	switch c := c.(type) {
	case interface{ Options() *redis.Options }:
		timeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		timeout = c.Options().ReadTimeout
	}
	if timeout > 0 && a.within >= timeout {
		return fmt.Errorf("latchkit: WithReplicaAck: the client gives up reading after %v, before %v are over; raise its ReadTimeout or wait for less", timeout, a.within)
	}
	return nil
}

// errFewAcks: the lease was written, but too few replicas know it, though all had the time to. It is not tried again.
var errFewAcks = errors.New("too few replicas have acknowledged the lease")

// pipeliner is a Client that can send several commands at once, on one connection to each server.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

// witness is a Client for the commands of one claim. It sends each together with a WAIT, in one pipeline and so on one
// connection: a WAIT speaks only of what its own connection has written. When a script is not known to the server, both are
// sent again, because whoever runs it sends its text the same way.
type witness struct {
	acks
	client Client
	key    string // that the commands concern
	short  error  // nil: enough replicas know what the last command has written
}

func (a acks) witness(c Client, key string) *witness { return &witness{acks: a, client: c, key: key} }

// Process is what makes it a Client. It returns the command's error only.
func (w *witness) Process(ctx context.Context, cmd redis.Cmder) error {
	cluster, ok := w.client.(clusterClient)
	if !ok {
		return w.send(ctx, w.client.(pipeliner), false, cmd) // acks.suit has seen to it
	}
	return direct(ctx, cluster, w.key, func(node *redis.Client, asking bool) error {
		return w.send(ctx, node, asking, cmd)
	})
}

// counts says whether a grant counts. Without a witness it does.
func (w *witness) counts(g Grant) (Grant, error) {
	if w != nil && w.short != nil && g.State == Granted {
		return Grant{}, w.short
	}
	return g, nil
}

func (w *witness) send(ctx context.Context, to pipeliner, asking bool, cmd redis.Cmder) error {
	wait := once{redis.NewStringCmd(ctx, "wait", w.replicas, millis(w.within))}
	p := to.Pipeline()
	if asking {
		_ = p.Process(ctx, redis.NewCmd(ctx, "asking"))
	}
	_, _ = p.Process(ctx, cmd), p.Process(ctx, wait) // they are only kept until Exec
	_, err := p.Exec(ctx)
	if cmd.Err() != nil {
		return cmd.Err()
	}
	text, waitErr := wait.Result()
	n, _ := strconv.Atoi(text)
	switch {
	case n >= w.replicas:
		w.short = nil
	case waitErr != nil: // a failover ends a WAIT, for example: nobody has counted
		w.short = fmt.Errorf("%w: whether replicas have acknowledged the lease is not known: WAIT: %w", ErrUnavailable, waitErr)
	case err != nil: // a hook has objected
		return err
	default:
		w.short = fmt.Errorf("%w: %w: %d of %d within %v; look at the server's replicas", ErrUnavailable, errFewAcks, n, w.replicas, w.within)
	}
	return nil
}
