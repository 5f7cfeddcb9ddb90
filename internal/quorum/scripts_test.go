package quorum

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
)

// bench is one node, to which a test sends single scripts.
type bench struct {
	t  *testing.T
	c  *redis.Client
	id string // the identity of the server
}

// ofThree are the settings of a quorum of three nodes with leases of at most a minute.
const ofThree = "3/60000"

// newBench returns a node that votes.
func newBench(t *testing.T, c *redis.Client) *bench {
	t.Helper()
	_, id, _ := strings.Cut(c.Info(t.Context(), "replication").Val(), "master_replid:")
	b := &bench{t: t, c: c, id: id[:40]}
	b.mark(marker{b.id, alwaysSince, ofThree}.String())
	return b
}

// mark writes a marker, or removes it.
func (b *bench) mark(text string) {
	b.t.Helper()
	b.c.Del(b.t.Context(), redisstore.NodeKey)
	if text == "" {
		return
	}
	if err := b.c.Set(b.t.Context(), redisstore.NodeKey, text, 0).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// The keys that the scripts get.
const keyL, keyC, keyX, keyD = "L", "C", "X", "D"

func (b *bench) vote(words ...any) (string, error) {
	return b.c.Eval(b.t.Context(), voteScript.Text, []string{keyL, keyC, keyX, redisstore.NodeKey}, append([]any{ofThree}, words...)...).Text()
}

func (b *bench) now() int64 { return b.c.Time(b.t.Context()).Val().UnixMicro() }

// ask returns the arguments of a request with a proposed fence.
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
	b := &bench{t, copied, of.id}
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
		"a confirmation":                run(confirmScript, []string{keyL, keyC, redisstore.NodeKey}, ofThree, "o", 5, 6, 6),
		"a release":                     run(releaseScript, []string{keyL, keyX}, "o"),
		"a renewal":                     run(renewScript, []string{keyL, redisstore.NodeKey}, "o", 60_000, ofThree),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
			t.Errorf("%s: %v, want READONLY", what, err)
		}
	}
}

// What a node answers to a request for its vote, by its marker and by the request. The node itself
// decides: it gives and renews nothing while it may have forgotten leases, and its wait begins only
// when the client knows the time and the node's clock agrees.
func TestANodeKeepsItselfOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	other := strings.Repeat("0", 40)
	const wait, hour = 61_300_000, 3_600_000_000
	since := func(d int64) string { return fmt.Sprintf("%016d", b.now()+d) }
	for _, c := range []struct {
		name   string
		marker string
		wait   []any // the last arguments of the request
		ahead  int64 // how far the client's time is ahead of the node's clock, in µs
		answer string
		begins bool // the node has written a marker and waits
	}{
		{"it votes", b.id + "/" + alwaysSince + "/" + ofThree, nil, 0, "1", false},
		{"its wait is over", b.id + "/" + since(-1000) + "/" + ofThree, nil, 0, "1", false},
		{"it votes, and is asked with a wait", b.id + "/" + alwaysSince + "/" + ofThree, []any{wait}, 0, "1", false},
		{"it waits", b.id + "/" + since(hour) + "/" + ofThree, []any{wait}, 0, "waits", false},
		{"no marker, asked in short", "", nil, 0, "forgot", false},
		{"no marker, asked by a client that does not know the time", "", []any{0}, 0, "forgot", false},
		{"no marker", "", []any{wait}, 0, "waits", true},
		{"no marker, and its clock is behind", "", []any{wait}, hour, "forgot", false},
		{"no marker, and its clock is ahead", "", []any{wait}, -hour, "forgot", false},
		{"the marker of an earlier run", other + "/" + alwaysSince + "/" + ofThree, []any{wait}, 0, "waits", true},
		{"the marker of an earlier run, asked in short", other + "/" + alwaysSince + "/" + ofThree, nil, 0, "forgot", false},
		{"its clock was wrong", b.id + "/" + neverSince + "/" + ofThree, []any{wait}, 0, "waits", true},
		{"its clock was wrong and still is", b.id + "/" + neverSince + "/" + ofThree, []any{wait}, hour, "stepped", false},
		{"its clock was wrong, asked in short", b.id + "/" + neverSince + "/" + ofThree, nil, 0, "stepped", false},
		{"another longest TTL", b.id + "/" + alwaysSince + "/3/50000", []any{wait}, 0, "other", false},
		{"another number of nodes", b.id + "/" + alwaysSince + "/5/60000", nil, 0, "other", false},
		{"another longest TTL, and an earlier run", other + "/" + alwaysSince + "/3/50000", []any{wait}, 0, "other", false},
		{"a text that is no marker", "abab:60000", []any{wait}, 0, "waits", true},
	} {
		b.c.Del(b.t.Context(), keyL, keyC)
		b.mark(c.marker)
		before := b.now()
		answer, err := b.vote(append(ask(before+c.ahead), c.wait...)...)
		if word, _, _ := strings.Cut(answer, " "); err != nil || word != c.answer {
			t.Errorf("%s: %q, %v, want %s", c.name, answer, err, c.answer)
		}
		if held := b.c.Exists(t.Context(), keyL).Val() == 1; held != (c.answer == "1") {
			t.Errorf("%s: it has voted: %v", c.name, held)
		}
		text := b.c.Get(t.Context(), redisstore.NodeKey).Val()
		m, _ := parseMarker(text)
		began, _ := strconv.ParseInt(m.since, 10, 64)
		if c.begins != (text != c.marker) || c.begins && (m.id != b.id || m.settings != ofThree || began < before+wait || began > b.now()+wait) {
			t.Errorf("%s: the marker became %q", c.name, text)
		}
		if c.answer != "1" {
			b.c.Set(t.Context(), keyL, "o:5:1:5:", time.Minute)
			b.mark(c.marker)
			renewed, err := b.c.Eval(t.Context(), renewScript.Text, []string{keyL, redisstore.NodeKey}, "o", 90_000, ofThree).Text()
			if err != nil || !strings.HasSuffix(renewed, " -") || b.c.PTTL(t.Context(), keyL).Val() > time.Minute {
				t.Errorf("%s: a renewal: %q, %v", c.name, renewed, err)
			}
			confirmed, err := b.c.Eval(t.Context(), confirmScript.Text, []string{keyL, keyC, redisstore.NodeKey}, ofThree, "o", 5, 6, 6).Text()
			if err != nil || confirmed != "0" {
				t.Errorf("%s: a confirmation: %q, %v", c.name, confirmed, err)
			}
			released, err := b.c.Eval(t.Context(), releaseScript.Text, []string{keyL, keyX}, "o").Text()
			if err != nil || released != "released" {
				t.Errorf("%s: a release: %q, %v", c.name, released, err)
			}
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

// An operator's change counts only for the server and the marker that the operator has seen. A
// repetition of the change is no failure.
func TestAMarkerIsChangedOnlyAsItWasSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t).Client(t))
	seen, want := b.c.Get(t.Context(), redisstore.NodeKey).Val(), marker{b.id, alwaysSince, "3/90000"}.String()
	for _, c := range []struct{ id, seen, answer string }{
		{strings.Repeat("0", 40), seen, "0"}, {b.id, "", "0"}, {b.id, want + "0", "0"}, {b.id, seen, "1"}, {b.id, seen, "1"},
	} {
		answer, err := b.c.Eval(t.Context(), markScript.Text, []string{redisstore.NodeKey}, c.id, c.seen, want).Text()
		if text := b.c.Get(t.Context(), redisstore.NodeKey).Val(); err != nil || answer != c.answer || (text == want) != (c.answer == "1") {
			t.Errorf("%+v: %q, %v, and the marker is %q", c, answer, err, text)
		}
	}
}

// A node that forgot its data also waits until its lost fences are in the past. Its counter may
// have been ahead of the clock by several times the skew.
func TestAWaitIsNoShorterThanFourTimesTheSkew(t *testing.T) {
	q := &quorum{skew: time.Second, longest: 500 * time.Millisecond}
	if d := q.quarantine(); d < 4*time.Second {
		t.Errorf("%v", d)
	}
	q.longest = time.Minute
	if d := q.quarantine(); d < time.Minute+time.Minute/100 {
		t.Errorf("%v for leases of a minute", d)
	}
}

// A written marker is read with the same content, and no other text is taken for a marker.
func TestMarkersAreReadAsTheyAreWritten(t *testing.T) {
	m := marker{strings.Repeat("ab", 20), neverSince, "3/90000"}
	if got, ok := parseMarker(m.String()); !ok || got != m {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, text := range []string{"", "a/b", strings.Repeat("ab", 20) + "/12/3/90000", strings.Repeat("ab", 20) + "/" + neverSince + "/3", "abab:60000"} {
		if got, ok := parseMarker(text); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
