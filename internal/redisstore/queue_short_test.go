package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// For a key with waiters, acquire.lua and release.lua have a short way, which is fast but
// serves only simple cases, and a long way for all cases. In every scene (a state of the
// server), the short way must answer, write and publish the same as the long way, or change
// nothing.
func TestTheShortWaysOfAQueueDoWhatTheLongWaysDo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	taken := make(map[string]int)
	for _, c := range scenes() {
		for script, args := range map[string][]any{
			"acquire": {sceneToken, "60000", "", "latchkit:i:alive|20000|0|1|0"},
			"release": {sceneToken, sceneEntry},
		} {
			first, _, _ := strings.Cut(forWaiters(t, script), "\n-- fragments\n")
			untouched, after := s.play(c, first+"\nreturn 'long'\n", args)
			if after[0] != "long" {
				taken[script]++
			} else if script == "release" && !slices.Equal(untouched, after[1:]) {
				t.Errorf("release, %+v: the short way was left, and the server has\n%q, was\n%q", c, after[1:], untouched)
			}
			_, short := s.play(c, withFragments(t, script, forWaiters(t, script)), args)
			_, long := s.play(c, withFragments(t, script, longWay(t, script)), args)
			if !slices.Equal(short, long) {
				t.Errorf("%s, %+v:\n%q by the short way,\n%q by the long way", script, c, short, long)
			}
		}
	}
	t.Log("scenes of the short ways:", taken)
	if taken["acquire"] < 50 || taken["release"] < 50 {
		t.Errorf("the short ways were taken %v times", taken)
	}
}

const (
	sceneToken = "MEMEMEMEMEMEMEMEMEMEMEMEME"
	sceneEntry = sceneToken + "|latchkit:i:alive|20000|0|1|0|"
	sceneClock = 1_795_380_000_999_950
)

// scene is the state of the server that a script finds. The clock does not advance.
type scene struct {
	lease, counter, tombstone string
	queue                     []redis.Z
}

func scenes() (all []scene) {
	entry := func(token, inbox, rest string) string { return strings.Repeat(token, 26) + "|" + inbox + "|" + rest }
	const plain = "2000|0|1|0|"
	at := func(age time.Duration, entry string) redis.Z {
		return redis.Z{Score: float64(sceneClock - age.Microseconds()), Member: entry}
	}
	next := at(3*time.Millisecond, entry("N", "latchkit:i:alive", plain))
	last := at(2*time.Millisecond, entry("Z", "latchkit:i:other", plain))
	queues := [][]redis.Z{nil, {next}, {next, last}}
	for _, head := range []redis.Z{
		at(3*time.Millisecond, entry("N", "latchkit:i:dead", plain)),
		at(3*time.Millisecond, entry("N", "latchkit:s:alive", plain)),
		at(3*time.Millisecond, entry("N", "-", plain)),
		at(3*time.Millisecond, entry("N", "latchkit:i:alive", "2000|0|1|0|meta|with:all ")),
		at(3*time.Millisecond, entry("N", "latchkit:i:alive", "2000|0|32|0|")),
		at(3*time.Millisecond, entry("N", "latchkit:i:alive", "2000|0|64|0|")), // the block has more fences than there are microseconds left in this second
		at(3*time.Millisecond, entry("N", "latchkit:i:alive", "2000|0|1|1|")),
		at(3*time.Millisecond, entry("N", "latchkit:i:alive", "2000|1|1|0|")),
		at(3*time.Millisecond, "short|latchkit:i:alive|"+plain),
		at(3*time.Millisecond, "of another format"),
		at(499*time.Millisecond, entry("N", "latchkit:i:alive", plain)),
		at(700*time.Millisecond, entry("N", "latchkit:i:alive", plain)),
		at(-time.Hour, entry("N", "latchkit:i:alive", plain)), // the clock was set back
		{Score: 1, Member: entry("N", "latchkit:i:alive", plain)},
		{Score: -sceneClock + 9000, Member: entry("N", "latchkit:i:alive", plain)},
	} {
		queues = append(queues, []redis.Z{head, at(600*time.Millisecond, last.Member.(string))})
		if head.Score > 0 {
			queues = append(queues, []redis.Z{head, at(-time.Hour-time.Second, last.Member.(string))})
		}
	}
	for _, q := range queues {
		handed := append([]redis.Z{{Score: -sceneClock + 9000, Member: sceneEntry}}, q...)
		for _, lease := range []string{"", sceneToken + ":7:1", sceneToken + ":7:1:\x0100-ab-cd-01\x01meta", strings.Repeat("H", 26) + ":7:1:meta", "a stranger's"} {
			for _, counter := range []string{"", fmt.Sprint(sceneClock - 1), fmt.Sprint(sceneClock + 5), "no number"} {
				all = append(all, scene{lease, counter, "", q}, scene{lease, counter, "", handed})
			}
			all = append(all, scene{lease, "", "undone", q}, scene{lease, "", "revoked:drill", handed})
		}
	}
	return all
}

// forWaiters returns the script without its short way for keys without waiters.
func forWaiters(t *testing.T, script string) string {
	t.Helper()
	return withoutShortWay(t, scriptText(t, script), map[string]string{"acquire": "if not ARGV[5] and", "release": "if ours and not ARGV[2] and"}[script])
}

// longWay returns the text of a script without its short ways.
func longWay(t *testing.T, script string) string {
	t.Helper()
	return withoutShortWay(t, forWaiters(t, script), map[string]string{"acquire": "if ARGV[4] and", "release": "if ours and ARGV[2] and"}[script])
}

// withoutShortWay returns text with the condition of a short way replaced by false, so that the
// script takes the long way.
func withoutShortWay(t *testing.T, text, condition string) string {
	t.Helper()
	if strings.Count(text, "\n"+condition) != 1 {
		t.Fatalf("no short way begins with %q", condition)
	}
	return strings.Replace(text, condition, "if false and", 1)
}

func withFragments(t *testing.T, script, text string) string {
	t.Helper()
	names := []string{"grant", "hand", "queue"}
	if script == "release" {
		names[2] = "once"
	}
	return strings.Replace(text, "\n-- fragments\n", "\n"+scriptText(t, names...), 1)
}

// stage is a server on which scenes are played, and a process that listens.
type stage struct {
	*testing.T
	client *redis.Client
	ear    *redis.PubSub
}

func newStage(t *testing.T) stage {
	t.Helper()
	client := redistest.Start(t).Client(t)
	s := stage{t, client, client.Subscribe(t.Context(), "latchkit:i:alive", "latchkit:i:other")}
	t.Cleanup(func() { s.ear.Close() })
	for range 2 {
		if _, err := s.ear.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// play runs the script in the parameter text with args, on a server with the state of the scene
// c. It returns the data on the server before the run, and the answer with the data and the
// messages after the run.
func (s stage) play(c scene, text string, args []any) (before, after []string) {
	s.Helper()
	text = strings.ReplaceAll(text, "redis.call('TIME')", fmt.Sprintf("{'%d', '%d'}", sceneClock/1_000_000, sceneClock%1_000_000))
	text = strings.ReplaceAll(text, "redis.call('PTTL', KEYS[1])", "58000")
	pipe := s.client.Pipeline()
	pipe.FlushDB(s.Context())
	for key, value := range map[string]string{"L": c.lease, "C": c.counter, "X": c.tombstone} {
		if value != "" {
			pipe.Set(s.Context(), key, value, time.Minute)
		}
	}
	if len(c.queue) > 0 {
		pipe.ZAdd(s.Context(), "Q", c.queue...)
		pipe.PExpire(s.Context(), "Q", 37*time.Second)
	}
	if _, err := pipe.Exec(s.Context()); err != nil {
		s.Fatal(err)
	}
	before = s.contents()
	answer, err := s.client.Eval(s.Context(), text, []string{"L", "Q", "C", "X"}, args...).Result()
	if err != nil {
		// Only the text before " script:" is compared, because the rest contains the script's
		// name.
		message, _, _ := strings.Cut(err.Error(), " script:")
		return before, append([]string{message}, s.contents()...)
	}
	return before, append([]string{fmt.Sprint(answer)}, s.contents()...)
}

// contents returns the keys, their times to live in steps of 20 s, and the messages.
func (s stage) contents() (all []string) {
	s.Helper()
	pipe := s.client.Pipeline()
	queue := pipe.ZRangeWithScores(s.Context(), "Q", 0, -1)
	var values []*redis.StringCmd
	var lives []*redis.DurationCmd
	for _, key := range []string{"L", "C", "X", "Q"} {
		lives = append(lives, pipe.PTTL(s.Context(), key))
		if key != "Q" {
			values = append(values, pipe.Get(s.Context(), key))
		}
	}
	if _, err := pipe.Exec(s.Context()); err != nil && err != redis.Nil {
		s.Fatal(err)
	}
	for _, v := range values {
		all = append(all, v.Val())
	}
	for _, z := range queue.Val() {
		all = append(all, fmt.Sprintf("%.0f %v", z.Score, z.Member))
	}
	for _, d := range lives {
		all = append(all, fmt.Sprint(d.Val().Round(20*time.Second)))
	}
	if err := s.ear.Ping(s.Context()); err != nil {
		s.Fatal(err)
	}
	for {
		message, err := s.ear.ReceiveTimeout(s.Context(), 20*time.Second)
		if err != nil {
			s.Fatal(err)
		}
		switch message := message.(type) {
		case *redis.Message:
			all = append(all, message.Channel+": "+message.Payload)
		case *redis.Pong:
			return all
		}
	}
}
