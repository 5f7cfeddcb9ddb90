// Package rueidisclient lets latchkit lock through a client of rueidis.
//
//	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	…
//	client, err := rueidisclient.New(c)
//	…
//	l, err := locker.New(client)
//
// Concurrent calls share rueidis' connections, and are sent together. From the first wait on, a
// Locker uses one more connection for its subscription. latchkit needs no client-side caching. With
// ClientOption.DisableCache, the Redis user needs no right to CLIENT TRACKING.
package rueidisclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker"
)

// Client is a locker.Client on top of a rueidis.Client. [New] makes a Client.
type Client struct{ rueidis rueidis.Client }

var _ interface {
	locker.Client
	redisstore.Subscriber
} = (*Client)(nil)

// New returns a client for the constructors locker.New, NewReadWrite, NewSemaphore and NewRedlock
// of package locker. NewRedlock needs one client for each server. c belongs to the caller. Close c
// only after the Locker.
//
// c connects to one server, or to the master that Sentinel names. New refuses a client of a Redis
// Cluster, because latchkit must know which node serves a key, and rueidis does not show this. Use
// a *redis.ClusterClient of go-redis on a Cluster. locker.WithReplicaAck is refused too, because
// the command WAIT counts only the writes of its own connection.
//
// The server must speak RESP3 (Redis 6). latchkit ends each call with a context, so rueidis' own
// time-out, ConnWriteTimeout, does not matter. A client with hooks, such as one of rueidisotel, is
// a rueidis.Client too. Its hooks see latchkit's commands with their tokens, which are secret.
func New(c rueidis.Client) (*Client, error) {
	switch {
	case c == nil:
		return nil, errors.New("latchkit: rueidisclient.New: the client is nil; make a client with rueidis.NewClient")
	case c.Mode() == rueidis.ClientModeCluster:
		return nil, errors.New("latchkit: rueidisclient.New: the client connects to a Redis Cluster, and rueidis does not expose which node serves a key; give the Locker a *redis.ClusterClient of go-redis")
	}
	return &Client{c}, nil
}

// FailsOver reports whether another server takes over when the client's own server is down. If so,
// a Locker subtracts the difference between the servers' clocks from its deadlines.
func (c *Client) FailsOver() bool { return c.rueidis.Mode() == rueidis.ClientModeSentinel }

// stringCmd is a command whose reply is a string. latchkit sends only such commands and SCAN.
type stringCmd interface{ SetVal(val string) }

// Process sends a command once, and sets its reply or its error. rueidis treats these commands as
// writes, so it does not repeat a command that may have been executed.
func (c *Client) Process(ctx context.Context, cmd redis.Cmder) error {
	err := c.do(ctx, cmd)
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

// do sends a command, and sets its reply.
func (c *Client) do(ctx context.Context, cmd redis.Cmder) error {
	text, isText := cmd.(stringCmd)
	scan, isScan := cmd.(*redis.ScanCmd) // one step of a SCAN, which Engine.Keys needs
	if !isText && !isScan {
		return fmt.Errorf("latchkit: rueidisclient: the reply to %s is a %T and not a string; send this command with rueidis itself", cmd.Name(), cmd)
	}
	words, err := textsOf(cmd.Args())
	if err != nil {
		return err
	}
	result := c.rueidis.Do(ctx, c.rueidis.B().Arbitrary(words...).Build())
	if isScan {
		page, err := result.AsScanEntry()
		scan.SetVal(page.Elements, page.Cursor)
		return errorOf(err)
	}
	value, err := textOf(result)
	if err == nil {
		text.SetVal(value)
	}
	return err
}

// textsOf returns the words of a command as they are sent.
func textsOf(args []any) ([]string, error) {
	words := make([]string, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			words[i] = arg
		case *string:
			words[i] = *arg
		case int:
			words[i] = strconv.Itoa(arg)
		case int64:
			words[i] = strconv.FormatInt(arg, 10)
		case *int64:
			words[i] = strconv.FormatInt(*arg, 10)
		default:
			return nil, fmt.Errorf("latchkit: rueidisclient: word %d of a command is a %T; give strings and integers", i, arg)
		}
	}
	return words, nil
}

// textOf reads an answer as a string, as go-redis does.
func textOf(result rueidis.RedisResult) (string, error) {
	message, err := result.ToMessage()
	if err != nil {
		return "", errorOf(err)
	}
	if message.IsInt64() {
		n, err := message.AsInt64()
		return strconv.FormatInt(n, 10), err
	}
	text, err := message.ToString()
	return text, errorOf(err)
}

// errorOf converts an error of rueidis to the error that go-redis would return.
func errorOf(err error) error {
	var reply *rueidis.RedisError
	switch {
	case err == nil:
		return nil
	case rueidis.IsRedisNil(err):
		return redis.Nil
	case errors.As(err, &reply):
		return refusal(reply.Error())
	case errors.Is(err, rueidis.ErrClosing):
		return fmt.Errorf("%w: %w", redis.ErrClosed, err)
	}
	return err
}

// refusal is an error in a server's reply. rueidis removes the prefix "ERR ".
type refusal string

var _ redis.Error = refusal("")

// RedisError marks the error as a server's reply.
func (refusal) RedisError() {}

func (r refusal) Error() string {
	if code, _, _ := strings.Cut(string(r), " "); code == strings.ToUpper(code) {
		return string(r)
	}
	return "ERR " + string(r)
}
