package main

import (
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
)

// A contestant with the word "scripts" in its name only sends latchkit's scripts: it repeats no
// lost calls, and detects no losses. Only "scripts renewed" renews leases, and only "scripts handed"
// waits. The figures of these contestants are a limit, because no lock that sends these scripts is
// faster.
const (
	scripts        = "scripts"
	scriptsRenewed = "scripts renewed"
	scriptsHanded  = "scripts handed"
)

var scriptFloors = []contestant{
	{name: scripts, kind: floor, open: func(s settings) (locks, error) { return openScripts(s) }},
	{name: scriptsRenewed, kind: floor, open: openRenewed},
	{name: scriptsHanded, kind: floor, noLock: true, open: openHanded},
}

var (
	acquireScript = bareScript("acquire")
	releaseScript = bareScript("release")
	renewScript   = bareScript("renew")
)

func bareScript(name string) *link.Script { return scriptOf(redisstore.ScriptTexts[name]) }

func scriptOf(text string) *link.Script {
	sum := sha1.Sum([]byte(text))
	return link.NewScript(text, hex.EncodeToString(sum[:]))
}

// scriptLocks call one script for each acquire and each release, on the caller's goroutine.
type scriptLocks struct {
	client redis.UniversalClient
	ttl    int64 // in ms
}

func openScripts(s settings) (*scriptLocks, error) {
	l := &scriptLocks{client: s.client(true), ttl: s.TTL.Milliseconds()}
	for _, script := range []*link.Script{acquireScript, releaseScript, renewScript} {
		if err := l.client.ScriptLoad(context.Background(), script.Text()).Err(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *scriptLocks) call(ctx context.Context, words []any) (string, error) {
	cmd := redis.NewStringCmd(ctx, words...)
	_ = l.client.Process(ctx, cmd) // cmd also has the error
	return cmd.Result()
}

// scriptLease is a key and the token that holds it.
type scriptLease struct {
	locks *scriptLocks
	key   string
	token string
}

func (l *scriptLocks) lease(key string) scriptLease {
	return scriptLease{l, key, rand.Text()}
}

// keys returns the KEYS of acquire.lua. The first two of them are the KEYS of release.lua.
func (s *scriptLease) keys() []string {
	return []string{s.key, redisstore.QueueKey(s.key), redisstore.CounterKey(s.key), redisstore.TombstoneKey(s.key, s.token)}
}

func (l *scriptLocks) Lock(ctx context.Context, key string) (hold, error) {
	lease := l.lease(key)
	text, err := l.call(ctx, acquireScript.Words(lease.keys(), lease.token, l.ttl))
	if err != nil {
		return nil, err
	}
	return &lease, checkAnswer(text, isGranted)
}

// Release implements hold.
func (s *scriptLease) Release(ctx context.Context) error {
	text, err := s.locks.call(ctx, releaseScript.Words(s.keys()[:2], s.token))
	if err != nil {
		return err
	}
	return checkAnswer(text, isReleased)
}

func (l *scriptLocks) Close() { _ = l.client.Close() }

// isGranted reports whether text, an answer of acquire.lua, grants the lease. The script has
// two forms of answer that grant a lease: a short form, which begins with a digit, and a long
// form.
func isGranted(text string) bool {
	return strings.HasPrefix(text, "granted ") || text != "" && text[0] <= '9' && strings.Count(text, " ") == 1
}

// isReleased reports whether text is the answer of release.lua for a released lease.
func isReleased(text string) bool { return text == "released" }

// checkAnswer returns an error unless isExpected returns true for text, the answer of a script.
func checkAnswer(text string, isExpected func(string) bool) error {
	if !isExpected(text) {
		return fmt.Errorf("the script answers %q", text)
	}
	return nil
}

// renewedLocks are scriptLocks with renewals. One goroutine renews all leases, each lease after
// a third of its TTL.
type renewedLocks struct {
	*scriptLocks
	leases chan *scriptLease
	stop   context.CancelFunc
}

// A call renews at most renewedTogether leases. They are looked for every renewedEvery.
const (
	renewedTogether = 100
	renewedEvery    = 3 * time.Millisecond
)

func openRenewed(s settings) (locks, error) {
	l, err := openScripts(s)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &renewedLocks{l, make(chan *scriptLease, 1024), stop}
	go r.renew(ctx, s.TTL/3)
	return r, nil
}

func (r *renewedLocks) Lock(ctx context.Context, key string) (hold, error) {
	h, err := r.scriptLocks.Lock(ctx, key)
	if lease, ok := h.(*scriptLease); err == nil && ok {
		r.leases <- lease
	}
	return h, err
}

func (r *renewedLocks) Close() {
	r.stop()
	r.scriptLocks.Close()
}

// renew renews each lease every interval, in the order in which the leases were acquired. It also
// renews leases that were released. The renewal of a released lease changes nothing at the server.
func (r *renewedLocks) renew(ctx context.Context, interval time.Duration) {
	type dated struct {
		lease *scriptLease
		due   time.Time
	}
	var line []dated
	often := time.NewTicker(renewedEvery)
	defer often.Stop()
	for ctx.Err() == nil {
		select {
		case lease := <-r.leases:
			line = append(line, dated{lease, time.Now().Add(interval)})
			continue
		case <-often.C:
		case <-ctx.Done():
			return
		}
		for now := time.Now(); len(line) > 0 && !line[0].due.After(now); {
			n := 1
			for n < len(line) && n < renewedTogether && !line[n].due.After(now) {
				n++
			}
			keys, args := make([]string, 0, n), make([]any, 0, 2*n)
			for i := range n {
				keys, args = append(keys, line[i].lease.key), append(args, line[i].lease.token, r.ttl)
				line = append(line, dated{line[i].lease, now.Add(interval)})
			}
			line = line[n:]
			if _, err := r.call(ctx, renewScript.Words(keys, args...)); err != nil {
				return
			}
		}
	}
}

// handedLocks are scriptLocks that queue, and are handed the key by a message.
type handedLocks struct {
	*scriptLocks
	inbox *redis.PubSub
	waits string // how each token waits, as in an entry of the queue
}

func openHanded(s settings) (locks, error) {
	l, err := openScripts(s)
	if err != nil {
		return nil, err
	}
	name := "latchkit:i:" + rand.Text()
	h := &handedLocks{l, l.client.Subscribe(context.Background(), name), fmt.Sprintf("%s|%d|0|1|0", name, l.ttl)}
	_, err = h.inbox.Receive(context.Background()) // the confirmation of the subscription
	return h, err
}

// handedLease is a lease whose token may have an entry in the queue.
type handedLease struct {
	scriptLease
	entry string
}

// Lock ends when its context ends. To end a read that is under way, Lock closes the subscription.
func (h *handedLocks) Lock(ctx context.Context, key string) (hold, error) {
	lease := &handedLease{scriptLease: h.lease(key)}
	lease.entry = lease.token + "|" + h.waits + "|"
	text, err := h.call(ctx, acquireScript.Words(lease.keys(), lease.token, h.ttl, "", h.waits))
	if err != nil || isGranted(text) {
		return lease, err
	}
	if !strings.HasPrefix(text, "busy ") {
		return nil, checkAnswer(text, isGranted)
	}
	defer context.AfterFunc(ctx, func() { _ = h.inbox.Close() })()
	for {
		switch m, err := h.inbox.ReceiveMessage(ctx); {
		case err != nil:
			return nil, err
		case strings.Contains(m.Payload, lease.token):
			return lease, nil
		}
	}
}

// Release implements hold.
func (s *handedLease) Release(ctx context.Context) error {
	text, err := s.locks.call(ctx, releaseScript.Words(s.keys()[:3], s.token, s.entry))
	if err != nil {
		return err
	}
	return checkAnswer(text, isReleased)
}

func (h *handedLocks) Close() {
	_ = h.inbox.Close()
	h.scriptLocks.Close()
}
