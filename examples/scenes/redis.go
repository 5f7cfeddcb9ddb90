package main

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// openRedis returns a client of a server that answers.
func openRedis(ctx context.Context, url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("%w; a Redis URL looks like redis://user:password@localhost:6379/0", err)
	}
	// go-redis would log each failed attempt, but the error that it returns shows the failure
	// anyway.
	logging.Disable()
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("no Redis answers at %s: %w", options.Addr, err)
	}
	return client, nil
}

// A localRedis is a Redis inside this process, so nothing has to be installed. It is enough for a
// demonstration. To prove that a lock is safe, use a real Redis with -redis.
type localRedis struct {
	server *miniredis.Miniredis
	stop   chan struct{}
	ended  chan struct{}
}

const (
	clockTick = time.Millisecond
	// While this process gets no processor time, no holder in it can renew its key. So
	// afterwards the clock advances only in small steps, and each holder can renew its key
	// before the key expires.
	clockStep = 10 * clockTick
)

// startRedis starts a server with a running clock. The server is a miniredis, in which time
// passes only when the program sets its clock. Without the running clock, no key would expire.
func startRedis() (*localRedis, error) {
	server, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	server.SetTime(now)   // the time that the command TIME returns
	server.ClockTTL(true) // keys expire by this time, too
	r := &localRedis{server, make(chan struct{}), make(chan struct{})}
	go r.run(now)
	return r, nil
}

func (r *localRedis) url() string { return "redis://" + r.server.Addr() }

func (r *localRedis) run(now time.Time) {
	defer close(r.ended)
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-r.stop:
			return
		case t := <-ticker.C:
			now = now.Add(min(t.Sub(last), clockStep))
			last = t
			r.server.SetTime(now)
		}
	}
}

func (r *localRedis) close() {
	close(r.stop)
	<-r.ended
	r.server.Close()
}
