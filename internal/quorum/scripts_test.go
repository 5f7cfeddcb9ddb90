package quorum

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
)

// bench is one node, to which a test sends single scripts.
type bench struct {
	t    *testing.T
	c    *redis.Client
	text string // the text of its marker
}

func newBench(t *testing.T, c *redis.Client) *bench {
	t.Helper()
	_, id, _ := strings.Cut(c.Info(t.Context(), "replication").Val(), "master_replid:")
	b := &bench{t: t, c: c, text: marker{id[:40], "set", stateVotes, 0, time.Minute, []seat{{"1", "a"}, {"1", "b"}, {"1", "c"}}}.String()}
	if err := c.Set(t.Context(), redisstore.NodeKey, b.text, 0).Err(); err != nil {
		t.Fatal(err)
	}
	return b
}

// The keys that the scripts get.
const (
	keyL, keyQ, keyW, keyC, keyX, keyD = "L", "Q", "W", "C", "X", "D"
)

func (b *bench) vote(words ...any) (string, error) {
	return b.c.Eval(b.t.Context(), voteScript.Text,
		[]string{keyL, keyQ, keyW, keyC, keyX, redisstore.NodeKey, keyD}, append([]any{b.text}, words...)...).Text()
}

func (b *bench) now() int64 { return b.c.Time(b.t.Context()).Val().UnixMicro() }

// ask returns the arguments of a request that does not queue, with a proposed fence.
func ask(fence int64) []any {
	return []any{fmt.Sprintf("o:%d:1:%d:", fence, fence), 60_000, fence, fence, fence - 500_000, fence + 500_000}
}

// The data of a replica may be old. So neither a "yes" nor a "no" of a replica may count.
func TestAReplicaAnswersNothing(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	copied := redistest.Start(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(master.Port()), "--repl-diskless-sync-delay", "0").Client(t)
	of := newBench(t, master.Client(t))
	of.c.Set(t.Context(), keyL, "another:5:1:5:", time.Minute)
	for try := 0; copied.Exists(t.Context(), keyL, redisstore.NodeKey).Val() < 2; try++ {
		if try == 200 {
			t.Fatal("nothing is copied")
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the pause between two checks
	}
	b := &bench{t, copied, of.text}
	run := func(s redisstore.Script, keys []string, args ...any) error {
		return copied.Eval(t.Context(), s.Text, keys, args...).Err()
	}
	_, busy := b.vote(ask(b.now())...)
	again := ask(b.now())
	again[0], again[1] = "another:7:1:7:", 10 // so that the repeated vote has no expiry to lengthen
	_, ours := b.vote(again...)
	for what, err := range map[string]error{
		"a vote for a key that is held": busy,
		"a vote that was given already": ours,
		"a confirmation":                run(confirmScript, []string{keyL, keyC, redisstore.NodeKey}, b.text, "o", 5, 6, 6),
		"a release":                     run(releaseScript, []string{keyL, keyQ, keyW, keyX, keyD, redisstore.NodeKey}, "o", "", ""),
		"a renewal":                     run(renewScript, []string{keyL, redisstore.NodeKey}, "o", 60_000, b.text),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
			t.Errorf("%s: %v, want READONLY", what, err)
		}
	}
}

// A server that has lost its marker, or that has restarted since, may have forgotten its leases. So
// it does not vote, locks nothing and renews nothing.
func TestAServerThatMayHaveForgottenGivesNoVote(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	restarted := strings.Repeat("0", 40) + b.text[40:]
	for name, marker := range map[string]string{"no marker": "", "another marker": "x", "the marker of an earlier run": restarted} {
		b.c.Del(t.Context(), redisstore.NodeKey)
		if marker != "" {
			b.c.Set(t.Context(), redisstore.NodeKey, marker, 0)
		}
		of := *b
		if marker == restarted {
			of.text = restarted
		}
		if answer, err := of.vote(ask(b.now())...); err != nil || !strings.HasPrefix(answer, "changed") || b.c.Exists(t.Context(), keyL).Val() != 0 {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		answer, err := b.c.Eval(t.Context(), renewScript.Text, []string{keyL, redisstore.NodeKey}, "o", 60_000, of.text).Text()
		if err != nil || !strings.HasPrefix(answer, "changed") {
			t.Errorf("%s: a renewal: %q, %v", name, answer, err)
		}
	}
}

// When a client's clock is ahead, the client can raise a node's counter by the skew at most. When
// its clock is behind, the client gets a fence from the node's clock.
func TestANodeBoundsTheFenceThatAClientProposes(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	for name, by := range map[string]int64{"an hour ahead": 3600e6, "an hour behind": -3600e6} {
		b.c.Del(t.Context(), keyL, keyC)
		before := b.now()
		if _, err := b.vote(ask(before + by)...); err != nil {
			t.Fatal(err)
		}
		after := b.now()
		got, err := b.c.Get(t.Context(), keyC).Int64()
		if err != nil || got < before || got > after+500_000 {
			t.Errorf("%s: the counter is %d µs after the node's clock, %v", name, got-before, err)
		}
	}
}

// The times of a client whose clock is years behind have fewer digits than the node's time. The
// script must not compare such texts as if they had equal lengths.
func TestAClockThatIsYearsBehindGetsTheNodesClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	before := b.now()
	answer, err := b.vote(ask(before / 1_000_000)...)
	if err != nil || !strings.HasPrefix(answer, "granted ") {
		t.Errorf("%q, %v", answer, err)
	}
	if got := b.c.Get(t.Context(), keyC).Val(); got < strconv.FormatInt(before, 10) {
		t.Errorf("the counter is %s, before the node's clock", got)
	}
}

// A counter with more digits than a time is the larger number, although its text is smaller. Lua
// cannot count beyond such a number, so the node must refuse a grant: otherwise it would give a
// fence twice.
func TestANodeDoesNotCountBeyondTheNumbersOfLua(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	for _, long := range []string{"10000000000000000", "9007199254740991"} {
		b.c.Set(t.Context(), keyC, long, 0)
		if answer, err := b.vote(ask(b.now())...); err == nil || !strings.Contains(err.Error(), "2^53") {
			t.Errorf("%q, %v", answer, err)
		}
		if got := b.c.Get(t.Context(), keyC).Val(); got != long || b.c.Exists(t.Context(), keyL).Val() != 0 {
			t.Errorf("the counter went from %s to %s", long, got)
		}
	}
}

// A node keeps its vote for the waiter that it has notified. Another token does not get this
// vote.
func TestAVoteThatIsKeptForAWaiterIsNotGivenToAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	b.c.Set(t.Context(), keyW, "another", time.Minute)
	answer, err := b.vote(ask(b.now())...)
	if err != nil || !strings.HasPrefix(answer, "busy ") || !strings.HasSuffix(answer, " another:0:0") {
		t.Errorf("%q, %v", answer, err)
	}
	if n := b.c.Exists(t.Context(), keyL, keyC).Val(); n != 0 || b.c.Get(t.Context(), keyW).Val() != "another" {
		t.Errorf("%d keys were written, and W is %q", n, b.c.Get(t.Context(), keyW).Val())
	}
	b.c.Set(t.Context(), keyW, "o", time.Minute)
	answer, err = b.vote(ask(b.now())...)
	if err != nil || !strings.HasPrefix(answer, "granted ") || b.c.Exists(t.Context(), keyW).Val() != 0 {
		t.Errorf("kept for the caller: %q, %v, W is %q", answer, err, b.c.Get(t.Context(), keyW).Val())
	}
}

// A node that forgot its data also waits until its lost fences are in the past. Its counter may
// have been ahead of the clock by several times the skew.
func TestAWaitIsNoShorterThanFourTimesTheSkew(t *testing.T) {
	q := &quorum{skew: time.Second}
	if d := q.quarantine(500 * time.Millisecond); d < 4*time.Second {
		t.Errorf("%v", d)
	}
	if d := q.quarantine(time.Minute); d < time.Minute+time.Minute/100 {
		t.Errorf("%v for leases of a minute", d)
	}
}

// A written marker is read with the same content, and no other text is taken for a marker.
func TestMarkersAreReadAsTheyAreWritten(t *testing.T) {
	m := marker{strings.Repeat("ab", 20), "s-1", stateJoins, 2, 90 * time.Second, []seat{{"1-a", "10.0.0.1:6379"}, {"2-b", ""}, {"3-c", "#2"}}}
	got, ok := parseMarker(m.String())
	if !ok || fmt.Sprint(got) != fmt.Sprint(m) {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, text := range []string{"", "a/b", "a/b/v/x/1/1@a", "a/b/v/3/1/1@a,2@b", "a/b/v/-1/1/1@a", "a/b/v/0/x/1@a", "abab:60000"} {
		if got, ok := parseMarker(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	if got := labelOf("a b/c,d@e"); got != "a_b_c_d_e" {
		t.Error(got)
	}
}

// A caller's wait may end between two looks at the nodes. Even then the caller's error names the
// nodes that do not vote, and shows until when they do not vote.
func TestAWaitThatEndsBetweenTwoLooksNamesTheNodesThatDoNotVote(t *testing.T) {
	dead := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = dead.Close() })
	q := newQuorum([]redisstore.Client{dead, dead, dead}, Settings{MaxTTL: time.Minute, NodeTimeout: time.Second})
	if err := q.Explain(""); err != nil {
		t.Errorf("no node was asked: %v", err)
	}
	q.whole.mu.Lock()
	for i := range q.nodes[:2] {
		q.whole.setStanding(i, standing{state: store.NodeForms, reason: errJoins(5 * time.Second), remaining: 5 * time.Second})
	}
	q.whole.setStanding(2, standing{state: store.NodeVotes, text: "N"})
	q.whole.mu.Unlock()
	err := q.Explain("")
	var when interface{ RetryAfter() time.Duration }
	if !errors.Is(err, store.ErrQuorum) || !errors.As(err, &when) || when.RetryAfter() != 5*time.Second {
		t.Errorf("two of three nodes do not vote for another 5 s: %v", err)
	}
}
