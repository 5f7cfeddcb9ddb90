package link

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// flight is calls that are under way together. It is a job of the crew, and goes on with what has
// been listed meanwhile.
type flight struct {
	lane  *lane
	calls []*Call
	ctx   *slot

	// Guarded by the link's mutex:
	slot  *slot
	place int  // among the flights of the slot
	lost  bool // it was given up: its answers are nobody's
	doubt bool // the link is not prompt, so its calls may have another node by now
}

// run sends one flight after the other, as long as there are calls and not too many flights.
func (f *flight) run() {
	for {
		began := time.Now()
		heard, sent := f.send()
		if !f.land(heard, sent, time.Since(began)) {
			return
		}
	}
}

// fill takes calls from the list; the link's mutex is held. It is false when there are none.
func (f *flight) fill(now time.Time) bool {
	l := f.lane
	if f.calls = l.batch(f.calls[:0]); len(f.calls) == 0 {
		return false
	}
	f.lost, f.doubt = false, !l.link.prompt
	f.ctx = l.slots.at(now)
	f.ctx.enter(f)
	l.flying++
	l.goRound(now.Add(promptWithin))
	return true
}

// land takes the flight off, and says whether it has another one to make.
func (f *flight) land(heard, sent bool, took time.Duration) bool {
	l, k := f.lane, f.lane.link
	k.mu.Lock()
	if f.lost {
		k.hung--
		f.calls = nil // whoever has given it up still looks at the old ones
	} else {
		l.flying--
		f.slot.land(f)
		if sent && !l.acked { // the sleep of a WAIT says nothing about the node
			k.note(took, heard)
		}
	}
	more := k.hung < k.most && l.flying < l.usual && l.n > 0 && f.fill(time.Now())
	k.mu.Unlock()
	if sent && !heard {
		k.owner.doubt()
	}
	return more
}

// send sends all calls, each of them once. Calls whose script the node does not know go out again
// at once: the first of each script with its text, which makes the node know it for those behind,
// and what is unknown even then with their texts too. It says whether the node has replied, and
// whether there was anything to send.
func (f *flight) send() (heard, sent bool) {
	calls := f.calls
	if f.doubt {
		calls = f.lane.link.owner.elsewhere(calls, f.lane.link)
		if len(calls) == 0 {
			return false, false
		}
	}
	unknown, heard := f.attempt(calls, byName)
	if len(unknown) > 0 {
		unknown, _ = f.attempt(unknown, firstInFull)
	}
	if len(unknown) > 0 {
		f.attempt(unknown, inFull)
	}
	return heard, true
}

// How an attempt names the scripts.
const (
	byName = iota
	firstInFull
	inFull
)

// attempt sends calls together, and returns those whose script the node does not know.
func (f *flight) attempt(calls []*Call, how int) (unknown []*Call, heard bool) {
	if c := calls[0]; len(calls) == 1 && !f.lane.acked && !c.asking {
		text, err := f.lane.link.process(f.ctx.with(c.values), c, how != byName)
		if c.unknown(err) && how != inFull {
			return calls, true
		}
		f.answer(c, text, err, 0, nil)
		return nil, replied(err)
	}
	ctx := f.ctx.ctx
	if len(calls) == 1 {
		ctx = f.ctx.with(calls[0].values)
	}
	p := f.lane.pipe.Pipeline()
	sent := make([]once, len(calls))
	var known map[*Script]bool
	if how == firstInFull {
		known = make(map[*Script]bool)
	}
	for i, c := range calls {
		if c.asking {
			_ = p.Process(ctx, redis.NewCmd(ctx, "asking")) // commands are only kept until Exec
		}
		sent[i] = c.command(ctx, how == inFull || how == firstInFull && c.Script != nil && !known[c.Script])
		if known != nil {
			known[c.Script] = true
		}
		_ = p.Process(ctx, sent[i])
	}
	var wait once
	if f.lane.acked {
		wait = f.wait(ctx)
		_ = p.Process(ctx, wait)
	}
	_, err := p.Exec(ctx)
	acks, acksErr := 0, error(nil)
	if f.lane.acked {
		acks, acksErr = acknowledged(wait, err)
	}
	for i, c := range calls {
		text, own := result(sent[i], err)
		heard = heard || replied(own)
		if c.unknown(own) && how != inFull {
			unknown = append(unknown, c)
			continue
		}
		f.answer(c, text, own, acks, acksErr)
	}
	return unknown, heard
}

// answer hands an answer out, or sends the call to the node that its slot has moved to.
func (f *flight) answer(c *Call, text string, err error, acks int, acksErr error) {
	if f.lane.link.owner.redirect(c, err) {
		return
	}
	if c.fate.CompareAndSwap(underWay, answered) {
		c.acks, c.acksErr = acks, acksErr
		c.tell(text, err)
	}
}

// wait is the command that counts the replicas which know what its connection has written.
func (f *flight) wait(ctx context.Context) once {
	o := &f.lane.link.owner.options
	return once{redis.NewStringCmd(ctx, "wait", o.Replicas, o.Within.Milliseconds())}
}

// acknowledged reads the answer to a WAIT.
func acknowledged(wait once, sending error) (int, error) {
	text, err := result(wait, sending)
	if err != nil { // a failover ends a WAIT, for example: nobody has counted
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	return n, nil
}
