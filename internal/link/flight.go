package link

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// flight is a group of calls that are under way together. A flight is a Job of the Links. When the
// calls of a flight have been answered, the flight continues with the calls that were listed in the
// meantime.
type flight struct {
	lane  *lane
	calls []*Call
	// window is the context of the calls. It changes only while no call of the flight is under way.
	window *window

	// The link's mutex guards the fields below.
	place   int  // index of the flight in window.flights
	givenUp bool // the flight was given up, so its answers are dropped
	doubt   bool // the link is not prompt, so its slots may have moved to another node
}

// Run makes one flight after the other, as long as calls are listed and not too many flights are
// under way.
func (f *flight) Run() {
	for {
		gotReply, sent, took := f.send()
		if !f.land(gotReply, sent, took) {
			return
		}
	}
}

// fill takes the calls of the next flight from the lane's list. The result is false when the
// list is empty. The caller holds the link's mutex.
func (f *flight) fill(now time.Time) bool {
	ln := f.lane
	if f.calls = ln.takeBatch(f.calls[:0]); len(f.calls) == 0 {
		return false
	}
	f.givenUp, f.doubt = false, !ln.link.prompt
	ln.windows.windowAt(now).enter(f)
	ln.flying++
	ln.scheduleExtra(now.Add(promptWithin))
	return true
}

// land ends the flight, and reports whether fill has prepared the next flight of this goroutine.
// The parameters are the results of the method send.
func (f *flight) land(gotReply, sent bool, took time.Duration) bool {
	ln, l := f.lane, f.lane.link
	l.mu.Lock()
	if f.givenUp {
		l.hung--
		f.calls = nil // f.calls is not used again, because giveUp still reads the old slice
	} else {
		ln.flying--
		l.crowd = len(f.calls)
		f.window.land(f)
		if sent && !ln.acked { // the duration of a WAIT is not the node's delay, because the WAIT sleeps
			l.recordTrip(took, gotReply)
		}
	}
	more := l.hung < l.most && ln.flying < ln.usual && ln.n > 0 && f.fill(time.Now())
	l.mu.Unlock()
	if sent && !gotReply {
		l.owner.reloadState()
	}
	return more
}

// send sends each call once. Where possible, one script makes several calls. The result gotReply
// reports whether the node has replied. The result sent reports whether there was a call to send.
// The result took is the time until the node's reply. This time does not include calls that a
// script has left out.
func (f *flight) send() (gotReply, sent bool, took time.Duration) {
	began := time.Now()
	calls := f.calls
	if f.doubt {
		calls = f.lane.link.owner.reroute(calls, f.lane.link)
		if len(calls) == 0 {
			return false, false, 0
		}
	}
	calls, groups := f.lane.link.gather(calls)
	gotReply = f.transmit(calls)
	took = time.Since(began)
	if left := f.lane.link.leftOutOf(groups); len(left) > 0 {
		f.transmit(left)
	}
	return gotReply, true, took
}

// transmit sends calls. When the node does not have a script, the calls of this script are sent
// again at once. The first of these calls has the script's text, so the node loads the script for
// the other calls. If the node still does not know the script of a call, the call is sent again
// with the script's text.
func (f *flight) transmit(calls []*Call) (gotReply bool) {
	unknown, gotReply := f.attempt(calls, byName)
	if len(unknown) > 0 {
		unknown, _ = f.attempt(unknown, firstInFull)
	}
	if len(unknown) > 0 {
		f.attempt(unknown, inFull)
	}
	return gotReply
}

// These constants are the forms in which an attempt sends the scripts of its calls.
const (
	byName      = iota // each call names its script, so the node must already have the script
	firstInFull        // the first call of each script has the text; its other calls name it
	inFull             // every call has the text of its script
)

// attempt sends calls together, and returns the calls whose script the node does not have. The
// parameter form is byName, firstInFull or inFull. The result gotReply reports whether the node has
// replied.
func (f *flight) attempt(calls []*Call, form int) (unknown []*Call, gotReply bool) {
	if c := calls[0]; len(calls) == 1 && !f.lane.acked && !c.asking {
		text, err := f.lane.link.sendOne(f.window.withValues(c.values), c, form != byName)
		if c.lacksScript(err) && form != inFull {
			return calls, true
		}
		f.answer(c, text, err, 0, nil)
		return nil, isReply(err)
	}
	ctx := f.window.ctx
	if len(calls) == 1 {
		ctx = f.window.withValues(calls[0].values)
	}
	p := f.lane.pipe.Pipeline()
	sent := make([]noRetryCmd, len(calls))
	var known map[*Script]bool
	if form == firstInFull {
		known = make(map[*Script]bool)
	}
	for i, c := range calls {
		if c.asking {
			// No reply is awaited, because a pipeline only queues commands until Exec.
			_ = p.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		sent[i] = c.command(ctx, form == inFull || form == firstInFull && c.Script != nil && !known[c.Script])
		if known != nil {
			known[c.Script] = true
		}
		_ = p.Process(ctx, sent[i])
	}
	var wait noRetryCmd
	if f.lane.acked {
		wait = f.waitForReplicas(ctx)
		_ = p.Process(ctx, wait)
	}
	_, err := p.Exec(ctx)
	note(&f.lane.link.failure, err)
	acks, acksErr := 0, error(nil)
	if f.lane.acked {
		acks, acksErr = ackCount(wait, err)
	}
	for i, c := range calls {
		text, own := resultOf(sent[i], err)
		gotReply = gotReply || isReply(own)
		if c.lacksScript(own) && form != inFull {
			unknown = append(unknown, c)
			continue
		}
		f.answer(c, text, own, acks, acksErr)
	}
	return unknown, gotReply
}

// answer delivers an answer to its call. If the call's slot has moved, answer sends the call to
// the new node.
func (f *flight) answer(c *Call, text string, err error, acks int, acksErr error) {
	if f.lane.link.owner.redirect(c, err) {
		return
	}
	if c.fate.CompareAndSwap(underWay, answered) {
		c.acks, c.acksErr = acks, acksErr
		c.deliver(text, err)
	}
}

// waitForReplicas returns the command WAIT, ready to be sent. To answer WAIT, the node counts the
// replicas that have received the writes of the command's own connection.
func (f *flight) waitForReplicas(ctx context.Context) noRetryCmd {
	o := &f.lane.link.owner.options
	return noRetryCmd{redis.NewStringCmd(ctx, "wait", o.Replicas, o.Within.Milliseconds())}
}

// ackCount returns the number of replicas from the answer to a WAIT. The parameter sending is the
// error that sending the WAIT has returned.
func ackCount(wait noRetryCmd, sending error) (int, error) {
	text, err := resultOf(wait, sending)
	if err != nil { // there is no count, for example because a failover ended the WAIT
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	return n, nil
}
