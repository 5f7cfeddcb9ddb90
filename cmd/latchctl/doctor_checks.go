package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// settings finds what a server's settings break. ahead is how far its clock is ahead of this
// machine's.
func (d *doctor) settings(ctx context.Context, c *redis.Client, ahead time.Duration) {
	found, server := 0, addressOf(ctx, c)
	report := func(l level, check, text, advice string) {
		found++
		d.report(server, l, check, text, advice)
	}
	if ahead.Abs() > time.Second {
		report(hint, "clock", fmt.Sprintf("the clocks of the server and of this machine differ by %v: logs show wrong times, and fences follow the server's clock", ahead.Abs().Round(time.Millisecond)), "run NTP on both")
	}
	text, err := c.Info(ctx).Result()
	if err != nil {
		report(hint, "settings", "not checked: "+err.Error(), "call doctor as a user who may run INFO")
		return
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	var major, minor int
	_, err = fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor)
	if err == nil && (major < 6 || major == 6 && minor < 2) {
		report(bad, "version", "Redis "+info["redis_version"], "install Redis 6.2 or newer: older ones lack commands that every step uses")
	}
	if info["role"] == "slave" {
		report(bad, "role", "it is a replica of "+info["master_host"]+":"+info["master_port"], giveTheMaster)
	}
	if policy := info["maxmemory_policy"]; policy != "" && policy != "noeviction" && info["maxmemory"] != "0" {
		report(bad, "eviction", "the server may drop leases when its memory is full (maxmemory-policy "+policy+")", "give caches a server of their own, then CONFIG SET maxmemory-policy noeviction; on a full server raise maxmemory first, or no lock can be taken")
	}
	if info["aof_enabled"] == "0" {
		report(hint, "persistence", "without an append-only file, a restart loses the newest leases, or all; each such holder gets ErrLost", "appendonly yes loses at most a second, and a quorum does not need it; data that checks the fence is safe in any case")
	}
	if n := info["connected_slaves"]; n != "" && n != "0" {
		report(hint, "replicas", n+"; a failover can lose the newest leases", "WithReplicaAck makes that rare; data that checks the fence is safe in any case")
	}
	if found == 0 {
		report(okay, "settings", "fit for locks", "")
	}
}

const giveTheMaster = "give the master; or the Sentinels, with master_name in the URL"

// probeTTL is how long the throw-away key lasts at most.
const probeTTL = 5 * time.Second

// probe locks a throw-away key as a service does, and lets a second Locker wait for it. So it finds
// what the server refuses, whether by its ACL, by a proxy or by its settings. The error of a refused
// lock says what to do, and on a hosted server which constructor fits.
func (d *doctor) probe(ctx context.Context, c redis.UniversalClient) {
	took, polls, err := handOff(ctx, c, d.key+":"+rand.Text())
	for tries := 1; tries < 3 && errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil; tries++ {
		took, polls, err = handOff(ctx, c, d.key+":"+rand.Text()) // a slow moment says nothing about the server
	}
	switch text := fmt.Sprint(err); {
	case d.key == doctorKey && (strings.Contains(text, "access a key") || strings.Contains(text, "access one of the keys")):
		d.report("all", hint, "probe", "this user may not lock a key that begins with "+d.key+": "+text, "try a key of the service: --key")
	case strings.Contains(text, "OOM"):
		d.report("all", bad, "probe", "the server is full, and no key can be locked: "+text, "raise maxmemory, or remove data that is not of locks (INFO memory); no FLUSHALL, and no eviction policy: they drop leases")
	case strings.Contains(text, "READONLY"):
		d.report("all", bad, "probe", "this server takes no writes: "+text, giveTheMaster)
	case err != nil:
		d.report("all", bad, "probe", "a key that begins with "+d.key+" cannot be locked: "+text, "docs/operations.md, What Redis must allow, has the ACL for a user of locks; docs/hosted.md says which kind of Locker fits which service")
	case polls != "":
		d.report("all", hint, "probe", fmt.Sprintf("a key was locked, but its waiter polled for %v: %s", took, polls), "allow SUBSCRIBE, PUBLISH, PUBSUB and the channels of docs/operations.md; docs/hosted.md has more")
	case took > time.Second/2:
		d.report("all", hint, "probe", fmt.Sprintf("a key was locked, but the hand-off to its waiter took %v", took), "allow PUBLISH; look for a slow network")
	default:
		d.report("all", okay, "probe", fmt.Sprintf("a key was locked, handed to a waiter in %v, and released", took), "")
	}
}

// handOff returns how long a waiter for the key waited after the holder's release had begun, and
// why the waiter polled, if it did.
func handOff(ctx context.Context, c redis.UniversalClient, key string) (took time.Duration, polls string, err error) {
	holders, err := locker.New(c)
	if err != nil {
		return 0, "", err
	}
	defer closeSoon(ctx, holders)
	waiters, err := locker.New(c)
	if err != nil {
		return 0, "", err
	}
	defer closeSoon(ctx, waiters)
	lease, err := holders.Acquire(ctx, locker.Rule{Key: key, TTL: probeTTL, Wait: locker.NoWait})
	if err != nil {
		return 0, "", err
	}
	var next *locker.Lease
	waited := make(chan error, 1)
	go func() {
		var err error
		next, err = waiters.Acquire(ctx, locker.Rule{Key: key, TTL: probeTTL, Wait: probeTTL})
		waited <- err
	}()
	for range 50 { // until the waiter is in the queue; an error of Queue does not matter here
		if queue, err := holders.Queue(ctx, key); err != nil || len(queue) > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	released := time.Now()
	err = lease.Release(ctx)
	if err = cmp.Or(err, <-waited); err != nil {
		return 0, "", err
	}
	took = time.Since(released).Round(time.Millisecond / 10)
	if nodes, err := waiters.Nodes(ctx); err == nil {
		polls = nodes[0].Polls
	}
	return took, polls, next.Release(ctx)
}

// closeSoon gives the undo of a call without an answer one second. Whatever it leaves ends with its TTL.
func closeSoon(ctx context.Context, e *locker.Engine) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = e.Close(ctx)
}

// votes says which nodes of a quorum vote.
func (d *doctor) votes(ctx context.Context, cs clients) {
	var nodes []store.Node
	l, err := locker.NewRedlock(cs.forLocker(), locker.WithMaxSkew(d.skew), locker.WithNodeTimeout(time.Second))
	if err == nil {
		defer closeWithin(l, time.Second)
		nodes, err = l.Nodes(ctx)
	}
	if err != nil {
		d.report("all", bad, "quorum", err.Error(), "correct the list of --node, or bring back the nodes that do not answer")
		return
	}
	out := 0
	for _, n := range nodes {
		if n.State != store.NodeVotes {
			out++
			advice := "bring it back: locks need more than half of the nodes; docs/runbook.md, node out"
			if n.State == store.NodeJoins {
				advice = "wait, and restart no other node; run enroll only for servers that were never used; docs/runbook.md, node out"
			}
			d.report("all", bad, "quorum", fmt.Sprintf("node %d, %s, does not vote (%s): %s", n.Index, n.Addr, n.State, n.Reason), advice)
		}
	}
	if out == 0 {
		d.report("all", okay, "quorum", fmt.Sprintf("all %d nodes vote", len(nodes)), "")
	}
}

// leftovers finds locks that never end.
func (d *doctor) leftovers(ctx context.Context, cs clients) {
	l, err := cs.look(ctx)
	if err != nil {
		d.report("all", bad, "locks", err.Error(), "correct the list of --node")
		return
	}
	defer l.close()
	locks, err := l.all(ctx, "*")
	if err != nil {
		advice := "repair what else is bad here, then call doctor again"
		if strings.Contains(err.Error(), "NOPERM") {
			advice = "call doctor as a user who may read all keys, with SCAN and GETRANGE"
		}
		d.report("all", hint, "locks", "not checked: "+err.Error(), advice)
		return
	}
	var eternal, foreign []string
	for _, lock := range locks {
		switch {
		case !lock.Held || lock.Left >= 0:
		case lock.Foreign:
			foreign = append(foreign, lock.key)
		default:
			eternal = append(eternal, lock.key)
		}
	}
	if len(eternal) > 0 {
		d.report("all", bad, "locks", fmt.Sprintf("%d leases have no TTL, so a crash of their holder locks them for ever: %s", len(eternal), strings.Join(eternal[:min(5, len(eternal))], ", ")), "somebody has run PERSIST; a live holder sets the TTL at its next renewal; if the holder is gone, run latchctl break")
	}
	if len(foreign) > 0 {
		d.report("all", bad, "locks", fmt.Sprintf("%d keys that latchkit waits for are held by other programs, without a TTL: %s", len(foreign), strings.Join(foreign[:min(5, len(foreign))], ", ")), "find the program; if it is gone, remove the key with the script under \"A foreign key without a TTL\" in docs/operations.md")
	}
	if len(eternal)+len(foreign) == 0 {
		d.report("all", okay, "locks", fmt.Sprintf("%d are held or waited for, and all of them end by themselves", len(locks)), "")
	}
}
