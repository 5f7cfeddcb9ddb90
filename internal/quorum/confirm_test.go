package quorum_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
)

// A confirmation may come late. Meanwhile the counted vote may have expired, and a repetition of
// the acquire may have got another vote of the node for the same token. Meanwhile other owners may
// also have got larger fences. So the confirmation must not raise this later vote to the old fence,
// because the holder would then have a fence that is too small. A confirmation raises only the
// counted vote, and never lowers it.
func TestOnlyTheVoteThatWasCountedIsRaised(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	counter := redisstore.CounterKey("a")
	for _, v := range []struct {
		name           string
		lease          string // the value of L before
		token          string
		minted         int
		fence, last    int
		counter, after int
		raised         string // the value of L after
	}{
		{name: "it is raised", lease: "o:1000:8:1000:me", minted: 1000, fence: 1200, last: 1203, after: 1203, raised: "o:1200:4:1000:me"},
		{name: "the counter is far ahead", lease: "o:1000:8:1000:me", minted: 1000, fence: 1200, last: 1203, counter: 5000, after: 5000, raised: "o:1200:4:1000:me"},
		{name: "once more", lease: "o:1200:4:1000:me", minted: 1000, fence: 1200, last: 1203, counter: 1203, after: 1203, raised: "o:1200:4:1000:me"},
		{name: "another vote for the same token", lease: "o:1100:8:1100:me", minted: 1000, fence: 1200, last: 1203, counter: 1107, after: 1107},
		{name: "another token", lease: "o:1000:8:1000:me", token: "u", minted: 1000, fence: 1200, last: 1203, counter: 1007, after: 1007},
		{name: "it would be lowered", lease: "o:1000:8:1000:me", minted: 1000, fence: 900, last: 903, counter: 1007, after: 1007},
		{name: "it is gone", minted: 1000, fence: 1200, last: 1203, counter: 1007, after: 1007},
	} {
		t.Run(v.name, func(t *testing.T) {
			if err := c.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if v.lease != "" {
				c.Set(t.Context(), "a", v.lease, time.Minute)
			}
			if v.counter != 0 {
				c.Set(t.Context(), counter, v.counter, 0)
			}
			markerOf(t, c)
			answer, err := c.Eval(t.Context(), quorum.ScriptTexts["confirm"],
				[]string{"a", counter, "latchkit:node"}, settingsOf, cmp.Or(v.token, "o"), v.minted, v.fence, v.last).Text()
			if err != nil {
				t.Fatal(err)
			}
			want, lease := "0", v.lease
			if v.raised != "" {
				want, lease = "1", v.raised
			}
			if got := c.Get(t.Context(), "a").Val(); answer != want || got != lease {
				t.Errorf("%q, and the vote is %q; want %q and %q", answer, got, want, lease)
			}
			if n, _ := c.Get(t.Context(), counter).Int(); n != v.after {
				t.Errorf("the counter is %d, want %d", n, v.after)
			}
			if lease != "" && c.PTTL(t.Context(), "a").Val() <= 0 {
				t.Error("the vote lasts for ever")
			}
		})
	}
}

// settingsOf are the settings of a quorum of three nodes with leases of at most a minute.
const settingsOf = "3/60000"

// markerOf writes the marker of a node that votes.
func markerOf(t *testing.T, c *redis.Client) {
	t.Helper()
	if err := c.Set(t.Context(), "latchkit:node", identityOf(t, c)+"/0000000000000000/"+settingsOf, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// identityOf returns the replication ID of a server.
func identityOf(t *testing.T, c *redis.Client) string {
	t.Helper()
	_, id, _ := strings.Cut(c.Info(t.Context(), "replication").Val(), "master_replid:")
	return id[:40]
}
