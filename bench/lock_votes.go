package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
)

// scriptVotes is a contestant that asks for votes and releases them, as latchkit's quorum does,
// and does nothing else. It does not undo votes that come late, so it leaves keys behind.
const scriptVotes = "scripts"

var (
	voteScript     = scriptOf(quorum.ScriptTexts["vote"])
	takeBackScript = scriptOf(quorum.ScriptTexts["release"])
)

// voteLocks have one goroutine for each node. This goroutine sends calls to the node one after
// the other.
type voteLocks struct {
	ttl      time.Duration
	nodes    []*voter
	acquired uint64
}

type voter struct {
	client   *redis.Client
	settings string // of the quorum, as the node's marker has them
	jobs     chan voterJob
}

type voterJob struct {
	words  []any
	answer chan<- string
}

func openVotes(addrs []string, ttl time.Duration) (quorumLocks, error) {
	ctx := context.Background()
	v := &voteLocks{ttl: ttl}
	for _, addr := range addrs {
		n := &voter{client: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}), jobs: make(chan voterJob, 1)}
		for _, script := range []*link.Script{voteScript, takeBackScript} {
			if err := n.client.ScriptLoad(ctx, script.Text()).Err(); err != nil {
				return nil, err
			}
		}
		marker, err := n.client.Get(ctx, redisstore.NodeKey).Result()
		if err != nil {
			return nil, err
		}
		parts := strings.SplitN(marker, "/", 3) // identity, since and the settings
		n.settings = parts[len(parts)-1]
		v.nodes = append(v.nodes, n)
		go n.work()
	}
	return v, nil
}

func (n *voter) work() {
	for job := range n.jobs {
		ctx := context.Background()
		cmd := redis.NewStringCmd(ctx, job.words...)
		if err := n.client.Process(ctx, cmd); err != nil {
			job.answer <- err.Error()
		} else {
			job.answer <- cmd.Val()
		}
	}
}

// ask sends a call to each node that is not busy. words returns the words of the call. ask returns
// when a quorum has answered with a text for which right returns true.
func (v *voteLocks) ask(words func(n *voter) []any, right func(string) bool) error {
	answers, asked := make(chan string, len(v.nodes)), 0
	for _, n := range v.nodes {
		select {
		case n.jobs <- voterJob{words(n), answers}:
			asked++
		default: // the node hangs
		}
	}
	wrong := errors.New("too few nodes answer")
	for need := len(v.nodes)/2 + 1; asked > 0; asked-- {
		text := <-answers
		if !right(text) {
			wrong = fmt.Errorf("a node answers %q", text)
		} else if need--; need == 0 {
			return nil
		}
	}
	return wrong
}

type voteLease struct {
	locks *voteLocks
	key   string
	token string
}

// clockTolerance is the largest difference that the bench allows between the clock of the client
// and the clock of a node.
const clockTolerance = time.Minute

func (v *voteLocks) Lock(_ context.Context, key string) (hold, error) {
	l := &voteLease{v, key, rand.Text()}
	now := time.Now()
	fence := strconv.FormatInt(now.UnixMicro(), 10)
	lease := l.token + ":" + fence + ":1:" + fence + ":"
	keys := []string{key, redisstore.CounterKey(key), redisstore.TombstoneKey(key, l.token), redisstore.NodeKey}
	earliest, latest := now.Add(-clockTolerance).UnixMicro(), now.Add(clockTolerance).UnixMicro()
	err := v.ask(func(n *voter) []any {
		return voteScript.Words(keys, n.settings, lease, v.ttl.Milliseconds(), fence, fence, earliest, latest)
	}, func(text string) bool { return strings.HasPrefix(text, "1 ") })
	v.acquired++
	return l, err
}

func (l *voteLease) Release(context.Context) error {
	keys := []string{l.key, redisstore.TombstoneKey(l.key, l.token)}
	return l.locks.ask(func(*voter) []any { return takeBackScript.Words(keys, l.token) }, isReleased)
}

// OneRound returns the number of all acquisitions as both results, because each acquisition has
// exactly one round trip.
func (v *voteLocks) OneRound() (oneRound, all uint64) { return v.acquired, v.acquired }

func (v *voteLocks) Close() {
	for _, n := range v.nodes {
		close(n.jobs)
		_ = n.client.Close()
	}
}
