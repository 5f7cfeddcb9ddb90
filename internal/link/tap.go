package link

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A Tap finds the network connections of a go-redis client, so that a link can write and read a
// connection by itself. go-redis makes the connection: it dials, asks Sentinel, logs in, and calls
// OnConnect. The client must have been made with [Tap.Dialer]. It must have no hooks, because hooks
// do not see the calls that a link writes.
type Tap struct {
	seeking atomic.Int32 // how many markers are sought
	markers sync.Map     // the connection that has written a marker: string → *tapped, or nil
}

// Dialer returns a dialer for the options of a client. The parameters are the fields of these
// options, which may be zero.
func (t *Tap) Dialer(
	next func(ctx context.Context, network, addr string) (net.Conn, error), timeout time.Duration, secure *tls.Config,
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if next == nil {
		if timeout == 0 {
			timeout = 5 * time.Second // the default of go-redis
		}
		next = redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: secure})
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if raw, ok := c.(syscall.Conn); ok { // go-redis looks at an idle connection through this method
			return struct {
				*tapped
				syscall.Conn
			}{&tapped{c, t}, raw}, nil
		}
		return &tapped{c, t}, nil
	}
}

// NoNotices returns the options of a client that asks for no notices of maintenance. A client with
// a Tap needs them, because nobody acts on notices that a link reads.
func NoNotices() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// tapped is a connection of a client with a Tap.
type tapped struct {
	net.Conn
	tap *Tap
}

// beforeMarker is what comes before a marker on the wire. A marker is the argument of ECHO, because
// the links send ECHO behind each call. PING would not do: a server that cannot write to its disk
// refuses it.
const beforeMarker = "*2\r\n$4\r\necho\r\n$26\r\n"

// Write writes to the connection, and remembers the connection if p has a marker.
func (c *tapped) Write(p []byte) (int, error) {
	if c.tap.seeking.Load() > 0 && len(p) == len(beforeMarker)+28 && strings.HasPrefix(string(p), beforeMarker) {
		marker := string(p[len(beforeMarker) : len(p)-2])
		c.tap.markers.CompareAndSwap(marker, (*tapped)(nil), c)
	}
	return c.Conn.Write(p)
}

// connect takes a connection from the client node. No other code uses the connection until the
// function hangUp has been called, which closes it. The random marker shows which connection it is,
// because a client may use a connection that it has dialed for another call.
func (t *Tap) connect(ctx context.Context, node *redis.Client) (c net.Conn, hangUp func(), err error) {
	marker := rand.Text()
	t.markers.Store(marker, (*tapped)(nil))
	t.seeking.Add(1)
	held := node.Conn()
	echo := redis.NewStringCmd(ctx, "echo", marker)
	err = held.Process(ctx, noRetryCmd{echo})
	t.seeking.Add(-1)
	found, _ := t.markers.LoadAndDelete(marker)
	own, _ := found.(*tapped)
	if err == nil && echo.Val() != marker || err != nil && isReply(err) && slices.Contains([]string{"ERR", "NOPERM"}, codeOf(err)) {
		own, err = nil, errNoEcho
	}
	if own == nil || !isReply(err) {
		_ = held.Close() // the connection is useless, whatever Close returns
		if err == nil {
			err = errNotTapped
		}
		return nil, nil, err
	}
	_ = own.SetDeadline(time.Time{}) // go-redis has set deadlines; a broken connection fails later
	return own.Conn, func() {
		if secure, ok := own.Conn.(*tls.Conn); ok {
			_ = secure.NetConn().Close() // otherwise the notice of the end may wait for a server that hangs
		} else {
			_ = own.Close()
		}
		// A failed call makes go-redis remove the connection from its pool, instead of keeping it.
		ping := context.Background()
		_ = held.Process(ping, noRetryCmd{redis.NewStringCmd(ping, "ping")})
		_ = held.Close()
	}, nil
}
