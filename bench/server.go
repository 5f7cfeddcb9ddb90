package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// server is a redis-server that only one row uses. The bench reads the server's state with the
// witness, but not while it measures.
type server struct {
	*redistest.Server
	witness *redis.Client
}

func launchServer() (server, error) {
	s, err := redistest.Launch()
	if err != nil {
		return server{}, err
	}
	return server{Server: s, witness: redis.NewClient(&redis.Options{Addr: s.Addr()})}, nil
}

func (s server) close() error { return errors.Join(s.witness.Close(), s.Close()) }

// settings returns the settings of the process with index n in a turn.
func (s server) settings(ttl time.Duration, n int) settings {
	return settings{Addr: s.Addr(), TTL: ttl, Process: n}
}

// clear removes the keys of the previous turn. It does not remove scripts.
func (s server) clear(ctx context.Context) error { return s.witness.FlushAll(ctx).Err() }

// load is what a server has executed.
type load struct {
	cpu   time.Duration
	calls map[string]int // how often each command was called, by its name in INFO commandstats
}

func (s server) load(ctx context.Context) (load, error) {
	text, err := s.witness.Info(ctx, "commandstats").Result()
	if err != nil {
		return load{}, err
	}
	used, err := s.witness.Info(ctx, "cpu").Result()
	if err != nil {
		return load{}, err
	}
	return parseLoad(text + used)
}

func parseLoad(info string) (load, error) {
	l := load{calls: map[string]int{}}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if command, ok := strings.CutPrefix(name, "cmdstat_"); ok {
			var calls int
			if _, err := fmt.Sscanf(value, "calls=%d,", &calls); err != nil {
				return load{}, fmt.Errorf("%q: %w", line, err)
			}
			l.calls[command] = calls
			continue
		}
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return load{}, fmt.Errorf("%q: %w", line, err)
			}
			l.cpu += time.Duration(seconds * float64(time.Second))
		}
	}
	return l, nil
}

// minus returns what the server has executed after earlier, a load that was read before l.
func (l load) minus(earlier load) load {
	d := load{cpu: l.cpu - earlier.cpu, calls: map[string]int{}}
	for command, n := range l.calls {
		d.calls[command] = n - earlier.calls[command]
	}
	return d
}

// housekeeping returns true for commands that are not counted: they set up a connection, or the
// bench itself sends them.
func housekeeping(command string) bool {
	family, _, _ := strings.Cut(command, "|")
	switch family {
	case "hello", "client", "command", "cluster", "auth", "select", "info", "config", "flushall", "pexpiretime", "quit":
		return true
	}
	return false
}

// onlyByClients are commands that no script can run.
var onlyByClients = map[string]bool{
	"eval": true, "evalsha": true, "script|load": true, "wait": true, "ping": true,
	"subscribe": true, "unsubscribe": true, "psubscribe": true, "punsubscribe": true, "ssubscribe": true, "sunsubscribe": true,
}

// commands returns the number of commands that clients have sent. The server counts the commands
// of scripts and of clients together. The method commands counts a command by its name: EVAL
// and EVALSHA are always from clients, because a script cannot run a script. The parameter
// sends lists the other commands that the contestant's clients send. A test compares the result
// with the commands that pass through a proxy.
func (l load) commands(sends []string) (n int) {
	for command, calls := range l.calls {
		if onlyByClients[command] {
			n += calls
		}
	}
	for _, command := range sends {
		n += l.calls[command]
	}
	return n
}

// total returns the number of calls that the server has executed, including the calls of scripts.
func (l load) total() (n int) {
	for command, calls := range l.calls {
		if !housekeeping(command) {
			n += calls
		}
	}
	return n
}
