package main

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// togetherLocks collect the calls of all callers. One goroutine sends all waiting acquires in
// one script, and all waiting releases in another script.
type togetherLocks struct {
	*scriptLocks
	wake chan struct{}

	mu      sync.Mutex
	waiting [2][]*gatheredCall // the calls that wait: acquires at index 0, releases at index 1
}

// gatheredCall is an acquire or a release that waits to be sent: the lease, and the channel for
// the answer.
type gatheredCall struct {
	locks *togetherLocks
	scriptLease
	answer chan string
}

const (
	toAcquire = iota
	toRelease
)

func openTogether(s settings) (locks, error) {
	l, err := openScripts(s)
	if err != nil {
		return nil, err
	}
	t := &togetherLocks{scriptLocks: l, wake: make(chan struct{}, 1)}
	go t.send()
	return t, nil
}

// Lock sends the acquire together with the acquires of other callers. If their common script
// has not executed this acquire, Lock sends it again, alone.
func (t *togetherLocks) Lock(ctx context.Context, key string) (hold, error) {
	g := &gatheredCall{t, t.lease(key), make(chan string, 1)}
	text := t.ask(toAcquire, g)
	if text == "" {
		return t.scriptLocks.Lock(ctx, key)
	}
	return g, checkAnswer(text, isGranted)
}

func (g *gatheredCall) Release(ctx context.Context) error {
	text := g.locks.ask(toRelease, g)
	if text == "" {
		return g.scriptLease.Release(ctx)
	}
	return checkAnswer(text, isReleased)
}

// ask lets g wait with the other calls of this kind, toAcquire or toRelease, until all of them
// are sent. It returns the answer to g.
func (t *togetherLocks) ask(kind int, g *gatheredCall) string {
	t.mu.Lock()
	t.waiting[kind] = append(t.waiting[kind], g)
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // the goroutine that sends is awake, and will find the call
	}
	return <-g.answer
}

func (t *togetherLocks) Close() {
	close(t.wake)
	t.scriptLocks.Close()
}

func (t *togetherLocks) send() {
	ctx := context.Background()
	for range t.wake {
		t.mu.Lock()
		acquires, releases := t.waiting[toAcquire], t.waiting[toRelease]
		t.waiting = [2][]*gatheredCall{}
		t.mu.Unlock()
		var sent []*redis.StringCmd
		if len(acquires) > 0 {
			sent = append(sent, redis.NewStringCmd(ctx, acquireWords(acquires, t.ttl)...))
		}
		if len(releases) > 0 {
			sent = append(sent, redis.NewStringCmd(ctx, releaseWords(releases)...))
		}
		var err error
		if len(sent) == 1 {
			err = t.client.Process(ctx, sent[0])
		} else if len(sent) > 1 {
			p := t.client.Pipeline()
			for _, cmd := range sent {
				_ = p.Process(ctx, cmd) // Exec returns the error
			}
			_, err = p.Exec(ctx)
		}
		for _, callers := range [][]*gatheredCall{acquires, releases} {
			if len(callers) > 0 {
				share(callers, sent[0].Val(), err)
				sent = sent[1:]
			}
		}
	}
}

func acquireWords(callers []*gatheredCall, ttl int64) []any {
	w := acquireEachScript.Writer(4*len(callers), 2*len(callers), 2*len(callers))
	for _, g := range callers {
		for _, key := range g.keys() {
			w.Text(key)
		}
	}
	for _, g := range callers {
		w.Text(g.token)
		w.Number(ttl)
		w.Number(locker.DefaultHandoffs)
		w.Text("")
	}
	return w.Words()
}

func releaseWords(callers []*gatheredCall) []any {
	w := releaseEachScript.Writer(2*len(callers), len(callers), 0)
	for _, g := range callers {
		w.Text(g.key)
		w.Text(g.keys()[1])
	}
	for _, g := range callers {
		w.Text(g.token)
	}
	return w.Words()
}

// share sends each caller its line of text, the answers of the script; or err, if it is not nil.
func share(callers []*gatheredCall, text string, err error) {
	answers := strings.Split(text, "\n")
	if err == nil && len(answers) != len(callers) {
		err = errors.New("the number of answers is wrong")
	}
	for i, g := range callers {
		if err != nil {
			g.answer <- err.Error()
		} else {
			g.answer <- answers[i]
		}
	}
}
