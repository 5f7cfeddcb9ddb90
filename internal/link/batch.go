package link

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// batch is a group of calls that are under way together. A batch of one call may be on the goroutine
// of the caller: see link.runAlone. Any other batch is a Job of a Pool.
type batch struct {
	queue   *queue
	calls   []*Call
	ctx     *sharedContext
	failure error // why the calls of the batch failed; nil: one of them succeeded

	// The link's mutex guards the fields below.
	began   time.Time
	copies  int  // how many times its calls were sent again: see queue.askAgain
	givenUp bool // the link goes on without this batch
	ended   bool // nobody waits for a call of this batch that was given up
	doubt   bool // the link is not prompt, so its slots may have moved to another node
}

// Run sends one batch after the other, as long as calls wait and not too many batches are active.
func (b *batch) Run() {
	for (len(b.calls) > 0 || b.fill()) && b.land(b.send()) {
	}
}

// fill takes the calls of the next batch from the queue, and starts it. First it lets the callers run
// that have just got their answers. The result is false when no call waits; then the batch has ended.
func (b *batch) fill() bool {
	runtime.Gosched()
	q := b.queue
	q.link.mu.Lock()
	defer q.link.mu.Unlock()
	if b.calls = q.take(b.calls); len(b.calls) == 0 {
		q.active--
		return false
	}
	b.start(time.Now())
	return true
}

// start counts the batch as under way. The caller holds the link's mutex.
func (b *batch) start(now time.Time) {
	q := b.queue
	b.began, b.copies, b.givenUp, b.ended, b.doubt, b.failure = now, 0, false, false, !q.link.prompt, nil
	if slices.ContainsFunc(b.calls, func(c *Call) bool { return c.Patience > q.limit }) {
		b.ctx = q.long.join(now)
	} else {
		b.ctx = q.short.join(now)
	}
	q.running = append(q.running, b)
	q.watch()
}

// land ends the batch, and reports whether the batch stays active, for the next calls. The parameters
// are the results of the method send.
func (b *batch) land(gotReply, sent bool, took time.Duration) (active bool) {
	q, l := b.queue, b.queue.link
	l.mu.Lock()
	q.running = slices.DeleteFunc(q.running, func(other *batch) bool { return other == b })
	b.ctx.leave()
	if b.givenUp {
		l.hung--
		l.noteFailure(b.failure)
	} else {
		l.sizes = [2]int{l.sizes[1], len(b.calls)}
		if sent && !q.acked { // the duration of a WAIT is not the node's delay, because the WAIT sleeps
			l.record(took, gotReply, b.failure)
		}
		b.calls = b.calls[:0]
		if active = q.active <= q.usual; !active {
			q.active--
		}
	}
	l.mu.Unlock()
	if sent && !gotReply {
		l.owner.reloadState()
	}
	return active
}

// send sends each call once. Where possible, one script makes several calls. The result gotReply
// reports whether the node has replied. The result sent reports whether there was a call to send.
// The result took is the time until the node's reply. This time does not include calls that a
// script has left out.
func (b *batch) send() (gotReply, sent bool, took time.Duration) {
	began, l := time.Now(), b.queue.link
	calls := b.calls
	if b.doubt {
		calls = l.owner.reroute(calls, l)
		if len(calls) == 0 {
			return false, false, 0
		}
	}
	calls, groups := l.gather(calls)
	gotReply = b.transmit(calls)
	took = time.Since(began)
	if left := l.leftOutOf(groups); len(left) > 0 {
		b.transmit(left)
	}
	return gotReply, true, took
}

// transmit sends calls. When the node does not know the script of a call, the call is sent again at
// once with the script's text, which the node then knows.
func (b *batch) transmit(calls []*Call) (gotReply bool) {
	unknown, gotReply := b.attempt(calls, false)
	if len(unknown) > 0 {
		b.attempt(unknown, true)
	}
	return gotReply
}

// attempt sends calls together, by the names of their scripts, or with inFull with their texts. It
// returns the calls whose script the node does not know. The result gotReply reports whether the
// node has replied.
func (b *batch) attempt(calls []*Call, inFull bool) (unknown []*Call, gotReply bool) {
	ctx, acked := b.ctx.Context, b.queue.acked
	if len(calls) == 1 {
		ctx = calls[0].within(ctx)
	}
	var pipe redis.Pipeliner // nil: a call by itself
	if len(calls) > 1 || acked || calls[0].asking {
		pipe = b.queue.pipe.Pipeline()
	}
	var one [1]noRetryCmd
	sent := one[:0]
	for _, c := range calls {
		if c.asking {
			_ = pipe.Process(ctx, redis.NewCmd(ctx, "asking")) // a pipeline only queues commands until Exec
		}
		cmd := c.command(ctx, inFull)
		if sent = append(sent, cmd); pipe != nil {
			_ = pipe.Process(ctx, cmd)
		}
	}
	var wait noRetryCmd
	if acked { // to answer WAIT, the node counts the replicas that have the writes of this connection
		o := &b.queue.link.owner.options
		wait = noRetryCmd{redis.NewStringCmd(ctx, "wait", o.Replicas, o.Within.Milliseconds())}
		_ = pipe.Process(ctx, wait)
	}
	var err error
	if pipe == nil {
		err = b.queue.link.client.Process(ctx, sent[0])
	} else {
		_, err = pipe.Exec(ctx)
	}
	acks, acksErr := 0, error(nil)
	if acked {
		acks, acksErr = ackCount(wait, err)
	}
	served := false
	for i, c := range calls {
		text, own := resultOf(sent[i], err)
		gotReply = gotReply || isReply(own)
		if !inFull && c.lacksScript(own) {
			unknown = append(unknown, c)
			continue
		}
		if served = served || own == nil; own != nil {
			b.failure = own
		}
		if b.queue.link.owner.redirect(c, own) {
			continue // the call's slot has moved, and the call goes to the new node
		}
		if c.fate.CompareAndSwap(underWay, answered) {
			c.acks, c.acksErr = acks, acksErr
			c.deliver(text, own)
		}
	}
	if served {
		b.failure = nil
	}
	return unknown, gotReply
}

// ackCount returns the number of replicas in the answer to a WAIT that was sent with the error sending.
func ackCount(wait noRetryCmd, sending error) (int, error) {
	text, err := resultOf(wait, sending)
	n := 0
	if err == nil {
		n, err = strconv.Atoi(text)
	}
	if err != nil { // there is no count, for example because a failover ended the WAIT
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	return n, nil
}
