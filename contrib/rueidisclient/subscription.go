package rueidisclient

import (
	"context"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/internal/redisstore"
)

// OpenPubSub returns a connection for subscriptions. It takes the connection from the client when
// the connection is first used. Package locker calls OpenPubSub.
func (c *Client) OpenPubSub(ctx context.Context) redisstore.PubSub {
	s := &subscription{requests: make(chan request, maxRequests), events: make(chan any, maxEvents)}
	s.ctx, s.cut = context.WithCancel(ctx)
	go s.run(c.rueidis)
	return s
}

const (
	maxRequests = 16  // the largest number of commands that have not been sent yet
	maxEvents   = 128 // the largest number of events that were not received yet; further events wait in the connection
)

// subscription is a dedicated connection of rueidis, with the methods of a *redis.PubSub. A
// goroutine sends the commands, so the methods do not wait for the server.
type subscription struct {
	ctx      context.Context
	cut      context.CancelFunc
	requests chan request
	events   chan any // events and errors for ReceiveTimeout
}

// request is a command for "run" to send. The server confirms a subscription through a hook, and
// not by a reply.
type request struct {
	build  func(b rueidis.Builder) rueidis.Completed
	answer any
}

// run takes a connection, and sends the requested commands until the connection is lost or Close is
// called.
func (s *subscription) run(c rueidis.Client) {
	conn, putBack := c.Dedicate()
	defer putBack()
	defer conn.Close() // the connection has subscriptions, so it must not go back to the pool without a Close
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			s.deliver(&redis.Message{Channel: m.Channel, Payload: m.Message})
		},
		OnSubscription: func(n rueidis.PubSubSubscription) {
			s.deliver(&redis.Subscription{Kind: n.Kind, Channel: n.Channel, Count: int(n.Count)})
		},
	})
	for {
		select {
		case command := <-s.requests:
			if err := conn.Do(s.ctx, command.build(conn.B())).Error(); err != nil {
				s.deliver(errorOf(err))
			} else if command.answer != nil {
				s.deliver(command.answer)
			}
		case err := <-lost:
			if err == nil {
				err = redis.ErrClosed
			}
			s.deliver(errorOf(err))
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// deliver passes event, which may be an error, to the caller of ReceiveTimeout. If deliver must
// wait for that caller, Close ends the wait.
func (s *subscription) deliver(event any) {
	select {
	case s.events <- event:
	case <-s.ctx.Done():
	}
}

// enqueue gives a request to the goroutine that sends the commands. After Close, it returns an
// error.
func (s *subscription) enqueue(build func(rueidis.Builder) rueidis.Completed, answer any) error {
	select {
	case s.requests <- request{build, answer}:
		return nil
	case <-s.ctx.Done():
		return redis.ErrClosed
	}
}

// Subscribe requests subscriptions to channels.
func (s *subscription) Subscribe(_ context.Context, channels ...string) error {
	return s.enqueue(func(b rueidis.Builder) rueidis.Completed { return b.Subscribe().Channel(channels...).Build() }, nil)
}

// SSubscribe requests subscriptions to sharded channels.
func (s *subscription) SSubscribe(_ context.Context, channels ...string) error {
	return s.enqueue(func(b rueidis.Builder) rueidis.Completed { return b.Ssubscribe().Channel(channels...).Build() }, nil)
}

// Unsubscribe requests the end of subscriptions to channels.
func (s *subscription) Unsubscribe(_ context.Context, channels ...string) error {
	return s.enqueue(func(b rueidis.Builder) rueidis.Completed { return b.Unsubscribe().Channel(channels...).Build() }, nil)
}

// SUnsubscribe requests the end of subscriptions to sharded channels.
func (s *subscription) SUnsubscribe(_ context.Context, channels ...string) error {
	return s.enqueue(func(b rueidis.Builder) rueidis.Completed { return b.Sunsubscribe().Channel(channels...).Build() }, nil)
}

// Ping sends a PING. Its reply arrives as a *redis.Pong.
func (s *subscription) Ping(context.Context, ...string) error {
	return s.enqueue(func(b rueidis.Builder) rueidis.Completed { return b.Ping().Build() }, &redis.Pong{})
}

// ReceiveTimeout returns the next event, or an error. A time-out does not close the connection.
func (s *subscription) ReceiveTimeout(ctx context.Context, timeout time.Duration) (any, error) {
	patience := time.NewTimer(timeout)
	defer patience.Stop()
	select {
	case what := <-s.events:
		if err, ok := what.(error); ok {
			return nil, err
		}
		return what, nil
	case <-patience.C:
		return nil, os.ErrDeadlineExceeded
	case <-s.ctx.Done():
		return nil, redis.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the connection. It does not wait until the connection has ended.
func (s *subscription) Close() error {
	s.cut()
	return nil
}
