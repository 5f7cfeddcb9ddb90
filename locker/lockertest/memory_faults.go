package lockertest

import (
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// errReplyLost is the error of a call whose answer LoseReplies has dropped. The call has run, but
// the caller cannot know that.
var errReplyLost = errors.New("lockertest: the call ran, its answer was lost")

// fault holds the faults that are set for one operation.
type fault struct {
	err           error
	repliesToLose int           // replies to lose
	delay         time.Duration // the delay before the call runs
	replyDelay    time.Duration // the delay of the answer
}

// Fail makes every call of op (OpAcquire, OpRenew, OpRelease, OpInspect, OpRevoke, OpRaiseFence)
// return err without running, until Fail is called with nil. To a Locker such a call is unclear, as
// one whose answer was lost. Like the other faults of a Memory, Fail affects the calls of all
// processes.
func (m *Memory) Fail(op locker.Op, err error) {
	m.setFault(op, func(f *fault) { f.err = err })
}

// LoseReplies makes the next n calls of op run, and drops their
// answers. These calls return an unclear error.
func (m *Memory) LoseReplies(op locker.Op, n int) {
	m.setFault(op, func(f *fault) { f.repliesToLose = n })
}

// Delay makes every call of op wait for d before it runs. The wait continues even if the context of
// the call ends, because go-redis does not stop a call in flight either. 0 ends the delay.
func (m *Memory) Delay(op locker.Op, d time.Duration) {
	m.setFault(op, func(f *fault) { f.delay = d })
}

// DelayReplies makes every call of op run at once, and delays the answer by d. So an event can come
// before the answer. 0 ends the delay.
func (m *Memory) DelayReplies(op locker.Op, d time.Duration) {
	m.setFault(op, func(f *fault) { f.replyDelay = d })
}

// Calls returns how often op was called, including the calls that failed by a fault.
func (m *Memory) Calls(op locker.Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// setFault calls change with the faults of op, and stores the result.
func (m *Memory) setFault(op locker.Op, change func(*fault)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.faults[op]
	change(&f)
	m.faults[op] = f
}

// step runs the function run, one call of the process p, with the faults that are set for op. If
// the process is paused or killed after it has sent the call, the call still runs, but the process
// gets no answer.
func step[T any](p *Process, op locker.Op, run func(m *Memory) (T, error)) (T, error) {
	m := p.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[op]++
	var none T
	if err := p.alive(); err != nil {
		return none, err
	}
	m.sleep(m.faults[op].delay)
	if err := m.faults[op].err; err != nil {
		return none, err
	}
	if op != locker.OpAcquire {
		m.losses.pass(string(op))
	}
	answer, err := run(m)
	if op == locker.OpAcquire {
		m.losses.pass(string(op))
	}
	if f := m.faults[op]; f.repliesToLose > 0 {
		m.faults[op] = fault{err: f.err, repliesToLose: f.repliesToLose - 1, delay: f.delay, replyDelay: f.replyDelay}
		return none, errReplyLost
	}
	m.sleep(m.faults[op].replyDelay)
	if err := p.alive(); err != nil {
		return none, err
	}
	return answer, err
}

// sleep waits for d. The caller holds m.mu, which is unlocked during the wait.
func (m *Memory) sleep(d time.Duration) {
	if d > 0 {
		m.mu.Unlock()
		defer m.mu.Lock()
		<-time.After(d)
	}
}
