package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/latchkit/latchkit/locker"
)

// servers has the URLs of the Redis servers, and the time-out of requests.
type servers struct {
	nodes   []string
	timeout time.Duration
}

// variable is the name of the environment variable with the nodes. latchctl uses it if the
// command line names no node.
const variable = "LATCHCTL_NODES"

func (s *servers) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&s.nodes, "node", nil, "URL of a Redis server, in the syntax of go-redis; repeat it for the nodes of a quorum (default: the nodes in $"+variable+", separated by spaces, or redis://localhost:6379)")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long to wait for the servers, 0 for ever")
}

// bound returns a context with the time-out of one command's requests.
func (s *servers) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("%w: no answer within %v (--timeout)", locker.ErrUnavailable, s.timeout))
}

// urls returns the URLs of the nodes, from the command line or the environment.
func (s *servers) urls() []string {
	if len(s.nodes) > 0 {
		return s.nodes
	}
	if nodes := strings.Fields(os.Getenv(variable)); len(nodes) > 0 {
		return nodes
	}
	return []string{"redis://localhost:6379"}
}

// connect returns a client for each node.
func (s *servers) connect(ctx context.Context) (clients, error) {
	urls := s.urls()
	// With several nodes, this check has a short time-out, so that a node that hangs does not
	// use up the time of the whole command.
	if len(urls) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, probeWithin)
		defer cancel()
	}
	all, errs := make(clients, len(urls)), make([]error, len(urls))
	var work sync.WaitGroup
	for i, text := range urls {
		work.Go(func() { all[i], errs[i] = dial(ctx, text) })
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			all.Close()
			return nil, err
		}
	}
	return all, nil
}

// probeWithin is the time-out for the check whether one of several nodes belongs to a Cluster.
const probeWithin = time.Second

// clients has one client for each node.
type clients []redis.UniversalClient

// Close closes the connections of all clients.
func (cs clients) Close() {
	for _, c := range cs {
		if c != nil {
			_ = c.Close() // an error does not matter, because the process ends
		}
	}
}

func (cs clients) forLocker() []locker.Client {
	all := make([]locker.Client, len(cs))
	for i, c := range cs {
		all[i] = c
	}
	return all
}

// engine makes a Locker that shows and revokes leases of every kind. On one server it shows the
// leases of readers as well; a quorum has no readers.
func (cs clients) engine() (l *locker.Engine, err error) {
	if len(cs) > 1 {
		l, err = locker.NewRedlock(cs.forLocker())
	} else {
		l, err = locker.NewReadWrite(cs[0])
	}
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return l, nil
}

// dial returns a client for the URL text. The URL or the answer of the server determines the kind
// of client.
func dial(ctx context.Context, text string) (redis.UniversalClient, error) {
	u, err := url.Parse(text)
	if strings.Contains(text, ",redis://") || strings.Contains(text, ",rediss://") {
		return nil, usage("--node: separate the nodes by spaces, or give each its own --node")
	}
	// Neither the text nor an error about it is printed if a part of a password may stand behind the host.
	if err != nil || strings.Contains(u.RequestURI()+u.Fragment, "@") {
		return nil, usage("--node: a URL cannot be read; in a password, write %%40 for @, %%2F for /, %%3F for ?, %%23 for #")
	}
	wrong := func(err error) error { return usage("--node %s: %w", u.Redacted(), err) }
	query := u.Query()
	switch {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(text)
		if err != nil {
			return nil, wrong(err)
		}
		o.ContextTimeoutEnabled = true
		return redis.NewFailoverClient(o), nil
	case query.Has("addr"):
		return dialCluster(text, wrong)
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, wrong(err)
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1 // more would hide the error behind a time-out
	c := redis.NewClient(o)
	// If the server does not answer, or refuses INFO, dial treats it as a single server. The next
	// command then reports the error.
	switch says, _ := c.Info(ctx).Result(); {
	case strings.Contains(says, "cluster_enabled:1"):
		_ = c.Close()
		return dialCluster(text, wrong)
	case strings.Contains(says, "_mode:sentinel"): // redis_mode, or server_mode of Valkey
		_ = c.Close()
		return nil, wrong(errors.New("this is a Sentinel; name its master with ?master_name=NAME"))
	}
	return c, nil
}

func dialCluster(text string, wrong func(error) error) (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(text)
	if err != nil {
		return nil, wrong(err)
	}
	o.ContextTimeoutEnabled = true
	return redis.NewClusterClient(o), nil
}

// overdue returns err, but if ctx has reached the time-out of the flag --timeout, it returns an
// error that names the flag.
func overdue(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}
