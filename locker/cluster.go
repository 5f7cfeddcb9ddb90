package locker

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// clustered is the Store of a Redis Cluster: that of one server, for each of its slots. All keys of a lock lie in one slot, so
// its scripts run at the node that serves it; a ClusterClient finds the node by the first key, and follows the slot when it
// moves. What differs is said here.
//
// While a slot moves, its keys are here or there, and a script that names several is refused as long as one of them is
// missing, or is on the other side: TRYAGAIN. A new lease must wait for the end of that. One that is held is renewed and
// released by steps that touch one key each, and so find it wherever it is.
type clustered struct {
	single
	cluster clusterClient
}

// Renew sends one script for each slot, all in one pipeline.
func (s clustered) Renew(ctx context.Context, cs []Claim) ([]Grant, error) {
	grants := make([]Grant, len(cs))
	all := batches(cs, func(key string) uint16 { return slot(tagOf(key)) })
	if s.acks.asked {
		s.each(all, func(b *batch) { s.renew(ctx, b, grants) })
	} else {
		calls := make([]*call, len(all))
		for i, b := range all {
			calls[i] = b.call()
		}
		together(ctx, s.renewals.(pipeliner), calls)
		for i, b := range all {
			if calls[i].err != nil {
				b.fail(grants, calls[i].err)
			} else {
				b.fill(grants, calls[i].text, nil)
			}
		}
	}
	s.each(alone(cs, grants), func(b *batch) { s.renewAlone(ctx, b, grants) })
	return s.renewed(ctx, cs, grants)
}

// mostAtOnce bounds the calls of one renewal that are under way at the same time.
const mostAtOnce = 8

// each does a step for all batches, a few at a time.
func (s clustered) each(all []*batch, step func(*batch)) {
	var work sync.WaitGroup
	free := make(chan struct{}, mostAtOnce)
	for _, b := range all {
		free <- struct{}{}
		work.Go(func() {
			step(b)
			<-free
		})
	}
	work.Wait()
}

// alone makes a batch of its own for each claim that was refused together with others because its slot moves.
func alone(cs []Claim, grants []Grant) (all []*batch) {
	for i, g := range grants {
		if g.Err != nil && movesSlots(g.Err) {
			all = append(all, &batch{handed: cs[i].Handed, all: cs, places: []int{i}})
		}
	}
	return all
}

// renewAlone renews one lease, and touches nothing else with the same script. If it was handed over, its entry in the queue goes
// out by itself: while the lease is ours, no other can have been handed.
func (s clustered) renewAlone(ctx context.Context, b *batch, grants []Grant) {
	plain := *b
	plain.handed = false
	s.renew(ctx, &plain, grants)
	if b.handed && grants[b.places[0]].State == Granted {
		if _, err := do(ctx, s.renewals, "zremrangebyscore", queueOf(b.first().Key), "-inf", "(0"); err != nil {
			b.fail(grants, refusal(err)) // not confirmed: again
		}
	}
}

// Release is that of one server unless the slot moves. Then the key is freed by itself, and who waits for it finds out by
// asking again. A lease whose release also sets the done mark is released when the slot has moved: both or nothing.
func (s clustered) Release(ctx context.Context, c Claim) (Grant, error) {
	g, err := s.single.Release(ctx, c)
	if err == nil || !movesSlots(err) || c.Complete && c.Once > 0 {
		return g, err
	}
	return s.releaseAlone(ctx, c)
}

// releaseAlone is a release in steps of one key each. Each is harmless without the next, and repeating all of them is, too: the
// tombstone comes first, so that no late acquire takes what is freed after it.
func (s clustered) releaseAlone(ctx context.Context, c Claim) (Grant, error) {
	tombstone := tombstoneOf(c.Key, c.Owner)
	if c.Undo > 0 {
		if _, err := do(ctx, s.steps, "set", tombstone, "undone", "px", millis(c.Undo), "nx"); err != nil && !errors.Is(err, redis.Nil) {
			return Grant{}, refusal(err)
		}
	}
	if c.Queue {
		if _, err := do(ctx, s.steps, "zrem", queueOf(c.Key), entryOf(c)); err != nil {
			return Grant{}, refusal(err)
		}
	}
	freed, err := freeScript.run(ctx, s.steps, []string{c.Key}, c.Owner, millis(c.Keep))
	if err != nil {
		return Grant{}, err
	}
	if freed == "1" {
		return Grant{State: Released}, nil
	}
	if note, err := do(ctx, s.steps, "getex", tombstone); err == nil {
		if reason, ok := strings.CutPrefix(note, "revoked:"); ok {
			return Grant{State: Revoked, Reason: reason}, nil
		}
	}
	return Grant{State: NotOurs}, nil
}
