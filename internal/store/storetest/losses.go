package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Losses loses one of the calls that a Store makes to its servers. A Store whose step is one call
// needs no Losses: [Harness.LoseReply] suffices. But between the calls of a longer step, a fault
// leaves a state of its own. So each law is checked again and again: each time, one call more of
// the law has gone before another call is lost. The law must hold although the step is repeated
// after the loss, with the same claim, as an Engine repeats it.
//
// A Losses is a hook of go-redis:
//
//	losses := new(storetest.Losses)
//	client.AddHook(losses)
//	return storetest.Harness{Store: newStore(client), Losses: losses}
//
// For a client of a Cluster, add the hook to the client of each node (ClusterClient.OnNewNode). A
// Store on another client makes each of its calls by [Losses.Call]. The zero value loses nothing.
// Its methods may be called from any goroutine.
type Losses struct {
	mu    sync.Mutex
	calls int  // number of calls until now
	armed bool // the call with the index at is to be lost
	at    int
	how   loss
	hit   bool // the call was lost, and nobody has repeated its step yet
	lost  bool // a call was lost
}

// loss says what of a call is lost.
type loss string

const (
	lostRequest loss = "request"
	lostReply   loss = "reply"
)

// errLost is the error of a lost call. It does not show whether the call has run.
var errLost = errors.New("storetest: no answer to this call")

// Call runs call, unless its request is lost. If its request or its reply is lost, Call returns an
// error that does not show whether call has run.
func (l *Losses) Call(call func() error) error {
	switch how := l.next(); how {
	case lostRequest:
		return errLost
	case lostReply:
		_ = call() // the reply is lost, whatever it was
		return errLost
	default:
		return call()
	}
}

// next counts a call, and returns what of it is lost, or "".
func (l *Losses) next() (how loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.armed && l.calls == l.at {
		how, l.armed, l.hit, l.lost = l.how, false, true, true
	}
	l.calls++
	return how
}

// lose makes the call with index at be lost, counted from the first call of l.
func (l *Losses) lose(at int, how loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls, l.armed, l.at, l.how, l.lost = 0, true, at, how, false
}

// count returns how many calls were made.
func (l *Losses) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// takeHit reports whether a call was lost since the last takeHit, and what of the call. A nil
// Losses has lost nothing.
func (l *Losses) takeHit() (how loss, hit bool) {
	if l == nil {
		return "", false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	how, hit, l.hit = l.how, l.hit, false
	return how, hit
}

// hasLost reports whether a call was lost. A nil Losses has lost nothing.
func (l *Losses) hasLost() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// DialHook does nothing. It makes l a [redis.Hook].
func (l *Losses) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts and loses single commands.
func (l *Losses) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ofConnection(cmd) {
			return next(ctx, cmd)
		}
		err := l.Call(func() error { return next(ctx, cmd) })
		if errors.Is(err, errLost) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook counts and loses pipelines and transactions. Each of them is one call.
func (l *Losses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ofConnection(cmds[0]) {
			return next(ctx, cmds)
		}
		err := l.Call(func() error { return next(ctx, cmds) })
		if errors.Is(err, errLost) {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// ofConnection reports whether cmd is about the connection and not a part of a step. A connection
// that loses UNWATCH is closed, and a closed connection watches nothing.
func ofConnection(cmd redis.Cmder) bool {
	return slices.Contains([]string{"hello", "client", "auth", "select", "ping", "readonly", "cluster", "command", "unwatch"}, strings.ToLower(cmd.Name()))
}

// mostLosses is the largest index of a call that is lost in one law. Laws with more calls repeat
// the same few steps.
const mostLosses = 40

// noCall is the index of no call.
const noCall = -1

// losesCalls reports whether the law can be checked with lost calls. A law that loses a reply by
// itself expects this one fault.
func (l law) losesCalls(h Harness) bool {
	without := h
	without.LoseReply = nil
	return l.applies(without)
}

// runWithLosses checks the law again for each call of the law, with the request or the reply of
// this call lost. The parameter calls is the number of calls that the law makes.
func (l law) runWithLosses(t *testing.T, calls int, setup func(t *testing.T) Harness) {
	for k := range min(calls, mostLosses) {
		for _, how := range []loss{lostRequest, lostReply} {
			t.Run(fmt.Sprintf("the %s of call %d is lost", how, k+1), func(t *testing.T) {
				t.Parallel()
				h := setup(t)
				h.Losses.lose(k, how)
				l.run(t, h)
			})
		}
	}
}
