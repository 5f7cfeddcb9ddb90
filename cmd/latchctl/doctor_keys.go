package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// withoutTTL has the prefixes of the keys that latchkit writes without a TTL.
var withoutTTL = []string{
	store.ReservedPrefix + "f:",    // fence counters
	store.ReservedPrefix + "node",  // the marker of a quorum's node
	store.ReservedPrefix + "begun", // the times at which the nodes of a quorum began to wait
}

// mostCounterLead is the largest time by which a fence counter may be ahead of the clock.
// Fences follow the clock, and a streak reserves fences for the next 100 ms. The rest of the
// two seconds is a margin for a clock that is set back.
const mostCounterLead = 2 * time.Second

// leftovers checks the keys that latchkit stores in addition to the leases, such as queues and
// fence counters.
func (p *patient) leftovers(ctx context.Context) {
	var eternal, ahead []string
	for cursor := uint64(0); ; {
		keys, next, err := p.client.Scan(ctx, cursor, store.ReservedPrefix+"*", 500).Result()
		if err != nil {
			p.report(hint, "keys", "not checked: "+err.Error(), remedy(err, "ACL SETUSER … +scan"))
			return
		}
		e, a, err := p.suspicious(ctx, keys)
		if err != nil {
			p.report(hint, "keys", "not checked: "+err.Error(), remedy(err, "let the user read "+store.ReservedPrefix+"*"))
			return
		}
		eternal, ahead = append(eternal, e...), append(ahead, a...)
		if cursor = next; cursor == 0 {
			break
		}
	}
	listed(p.report, bad, "keys", eternal, "keys of latchkit have no TTL", "somebody has run PERSIST or RESTORE; give each of these keys a TTL of a minute: PEXPIRE KEY 60000")
	listed(p.report, hint, "fences", ahead, "fence counters are ahead of the server's clock", "fences continue from these counters as long as the servers keep their data; the clock was set back, or RaiseFence was used; docs/runbook.md, fence regressed")
	if len(eternal)+len(ahead) == 0 {
		p.report(okay, "keys", "the keys that latchkit keeps beside the leases are in order", "")
	}
}

// suspicious returns the keys that have no TTL but should have one, and the fence counters that
// are too far ahead of the clock.
func (p *patient) suspicious(ctx context.Context, keys []string) (eternal, ahead []string, err error) {
	lives, values := make([]*redis.DurationCmd, len(keys)), make([]*redis.StringCmd, len(keys))
	pipe := p.client.Pipeline()
	for i, key := range keys {
		if strings.HasPrefix(key, withoutTTL[0]) {
			values[i] = pipe.Get(ctx, key)
		} else {
			lives[i] = pipe.PTTL(ctx, key)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && err != redis.Nil {
		return nil, nil, err
	}
	limit := time.Now().Add(p.clocks[len(p.clocks)-1] + mostCounterLead).UnixMicro()
	for i, key := range keys {
		switch {
		case values[i] != nil:
			if n, err := strconv.ParseInt(values[i].Val(), 10, 64); err != nil || n > limit {
				ahead = append(ahead, key)
			}
		case key == withoutTTL[1] || key == withoutTTL[2]:
		case lives[i].Val() == -1: // go-redis returns a duration of -1 ns for a key without a TTL
			eternal = append(eternal, key)
		}
	}
	return eternal, ahead, nil
}

// waiters looks for locks that never expire, and for queues in which the processes of all
// waiters have ended.
func (d *doctor) waiters(ctx context.Context, cs clients) {
	l, err := cs.look(ctx)
	if err != nil {
		d.reportAll(bad, "quorum", err.Error(), "correct the list of --node")
		return
	}
	defer l.close()
	locks, err := l.all(ctx, "*")
	if err != nil {
		d.reportAll(hint, "locks", "not checked: "+err.Error(), remedy(err, "give a user who may read all keys"))
		return
	}
	var eternal, stuck, dead []string
	for _, lock := range locks {
		switch {
		case lock.Held && lock.Left < 0 && lock.Foreign:
			stuck = append(stuck, lock.key)
		case lock.Held && lock.Left < 0:
			eternal = append(eternal, lock.key)
		case !lock.Held && d.abandoned(ctx, l.engine, lock.key):
			dead = append(dead, lock.key)
		}
	}
	listed(d.reportAll, bad, "locks", eternal, "leases have no TTL, so a crash of their holder locks them for ever", "somebody has run PERSIST; a live holder sets the TTL at its next renewal; if the holder is gone, run latchctl break")
	listed(d.reportAll, bad, "locks", stuck, "keys that latchkit waits for are held by other programs, without a TTL", "find the program; if it is gone, remove the key with the script under \"A foreign key without a TTL\" in docs/operations.md")
	listed(d.reportAll, hint, "locks", dead, "queues have only waiters whose processes are gone", "nothing to do: the next caller removes them, or they end within a minute")
	if len(eternal)+len(stuck)+len(dead) == 0 {
		d.reportAll(okay, "locks", fmt.Sprintf("%d are held or waited for, and all of them end by themselves", len(locks)), "")
	}
}

// abandoned reports whether key has waiters, and the processes of all these waiters are gone.
func (d *doctor) abandoned(ctx context.Context, engine *locker.Engine, key string) bool {
	queue, err := engine.Queue(ctx, key)
	return err == nil && len(queue) > 0 && !slices.ContainsFunc(queue, func(w locker.Waiter) bool { return !w.Gone })
}

// votes reports which nodes of a quorum vote. If none of the servers is marked as a node yet,
// the method votes does not query them as a quorum, because the query would begin to make them
// one.
func (d *doctor) votes(ctx context.Context, cs clients) {
	marked, silent := 0, 0
	for _, c := range cs {
		switch there, err := d.marked(ctx, c); {
		case err != nil:
			silent++
		case there:
			marked++
		}
	}
	if marked == 0 && silent > 0 {
		d.reportAll(bad, "quorum", fmt.Sprintf("not checked: %d nodes do not answer, and the others are new or were emptied", silent), "bring back the nodes that do not answer, and do not run latchctl enroll before they answer")
		return
	}
	if marked == 0 {
		d.reportAll(bad, "quorum", "these servers are no quorum yet", "if the servers are new, run latchctl enroll once; otherwise change nothing: they vote by themselves after a quarantine")
		return
	}
	l, err := locker.NewRedlock(cs.forLocker(), locker.WithMaxSkew(d.skew), locker.WithNodeTimeout(time.Second))
	if err != nil {
		d.reportAll(bad, "quorum", err.Error(), "correct the list of --node")
		return
	}
	defer closeWithin(l, time.Second)
	nodes, err := l.Nodes(ctx)
	// The first call of Nodes may return before a slow node has answered, and then the node's
	// state is unknown. So this loop calls Nodes again.
	unknown := func(n store.Node) bool { return n.State == store.NodeUnknown }
	for again := 0; again < 2 && err == nil && slices.ContainsFunc(nodes, unknown); again++ {
		nodes, err = l.Nodes(ctx)
	}
	if err != nil {
		d.reportAll(bad, "quorum", err.Error(), "")
		return
	}
	out := 0
	for _, n := range nodes {
		if n.State != store.NodeVotes {
			out++
			d.reportAll(bad, "quorum", fmt.Sprintf("node %d, %s, does not vote (%s): %s", n.Index, n.Addr, n.State, n.Reason), "bring it back before another node fails; docs/runbook.md, node out")
		}
	}
	if out == 0 {
		d.reportAll(okay, "quorum", fmt.Sprintf("all %d nodes vote", len(nodes)), "")
	}
}

// remedy returns the advice for a check that failed with err. If the server has refused the user,
// the advice is the parameter rights.
func remedy(err error, rights string) string {
	if strings.Contains(err.Error(), "NOPERM") {
		return rights
	}
	return "repair what else is bad here, then call doctor again"
}

// marked reports whether a server has the marker of a quorum's node.
func (d *doctor) marked(ctx context.Context, c redis.UniversalClient) (bool, error) {
	if _, ok := c.(*redis.ClusterClient); ok {
		return true, nil // true for every Cluster, because its markers are in many slots
	}
	ctx, cancel := d.bound(ctx)
	defer cancel()
	n, err := c.Exists(ctx, withoutTTL[1]).Result()
	return n > 0, err
}
