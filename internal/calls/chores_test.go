package calls

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// attempts is a node that counts how often chores are tried.
type attempts struct {
	answer       atomic.Pointer[error]
	n, now, most atomic.Int64
}

// The errors with which a node answers.
var (
	errUnclear       = errors.New("the connection broke")
	errNotNow  error = &store.Refusal{Temporary: true, Err: errors.New("not now")}
	errNever   error = &store.Refusal{Err: errors.New("never")}
	errRepair  error = &store.Refusal{UntilRepaired: true, Err: errors.New("not before a repair")}
)

func node(answer error) *attempts {
	a := &attempts{}
	a.answer.Store(&answer)
	return a
}

// chore returns a chore whose attempts take 1 ms each.
func (a *attempts) chore(useful time.Duration) Chore {
	return Chore{Useless: time.Now().Add(useful), Try: func(_ store.Claim, onAnswer func(store.Grant, error)) {
		a.n.Add(1)
		a.most.Store(max(a.most.Load(), a.now.Add(1)))
		time.AfterFunc(time.Millisecond, func() {
			a.now.Add(-1)
			onAnswer(store.Grant{}, *a.answer.Load())
		})
	}}
}

func TestChoresThatAreAnsweredTravelAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(nil), &Chores{}
		for range 100 {
			cs.Add(a.chore(time.Minute))
		}
		if err := cs.Stop(t.Context()); err != nil || a.n.Load() != 100 || a.most.Load() != 100 {
			t.Errorf("%d attempts, %d at once, %v", a.n.Load(), a.most.Load(), err)
		}
	})
}

func TestOneChoreAtATimeProbesANodeThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(errUnclear), &Chores{}
		cs.Add(a.chore(time.Hour))
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // in a bubble
		for range 1000 {
			cs.Add(a.chore(time.Hour))
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
		if a.most.Load() != 1 || a.n.Load() < 20 || a.n.Load() > 60 {
			t.Errorf("%d attempts in 10 s, %d at once", a.n.Load(), a.most.Load())
		}
		for a.now.Load() > 0 { // the answer of this attempt counts with the attempts before
			time.Sleep(time.Millisecond) //nolint:forbidigo // in a bubble
		}
		a.answer.Store(new(error))
		a.n.Store(0)
		if err := cs.Stop(t.Context()); err != nil || a.n.Load() != 1001 || a.most.Load() < 1000 {
			t.Errorf("once the node answers: %d attempts, %d at once, %v", a.n.Load(), a.most.Load(), err)
		}
	})
}

func TestARefusalForGoodEndsItsChoreOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var warned []error
		bad, good := node(errNever), node(nil)
		cs := &Chores{Warn: func(err error) { warned = append(warned, err) }}
		cs.Add(bad.chore(time.Hour))
		cs.Add(good.chore(time.Hour))
		if err := cs.Stop(t.Context()); err != nil || bad.n.Load() != 1 || good.n.Load() != 1 {
			t.Errorf("%d and %d attempts, %v", bad.n.Load(), good.n.Load(), err)
		}
		if len(warned) != 1 || !errors.Is(warned[0], errNever) {
			t.Errorf("the warnings are %v", warned)
		}
	})
}

// A server that refuses calls until an operator has repaired something executes the chores then.
func TestAChoreThatIsRefusedUntilARepairIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(errRepair), &Chores{}
		cs.Add(a.chore(time.Hour))
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble
		refused := a.n.Load()
		a.answer.Store(new(error))
		if err := cs.Stop(t.Context()); err != nil || refused < 2 || a.n.Load() != refused+1 {
			t.Errorf("%d attempts, and %d later, %v", refused, a.n.Load()-refused, err)
		}
	})
}

func TestAChoreEndsWhenItIsUseless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(errUnclear), &Chores{}
		cs.Add(a.chore(3 * time.Second))
		began := time.Now()
		if err := cs.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestCloseWaitsForChoresUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(errUnclear), &Chores{}
		cs.Add(a.chore(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cs.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %v", err)
		}
		n := a.n.Load()
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		if a.n.Load() > n+1 {
			t.Errorf("%d attempts after Stop", a.n.Load()-n)
		}
		n = a.n.Load()
		cs.Add(a.chore(time.Hour))
		if time.Sleep(time.Minute); a.n.Load() != n+1 { //nolint:forbidigo // in a bubble
			t.Errorf("a chore that was added after Stop was tried %d times, want 1", a.n.Load()-n)
		}
	})
}

// A chore that comes while Stop waits for another chore must not be dropped.
func TestAChoreThatComesDuringStopIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, cs := node(errUnclear), node(nil), &Chores{}
		cs.Add(first.chore(time.Second))
		stopped := make(chan error)
		go func() { stopped <- cs.Stop(t.Context()) }()
		synctest.Wait()
		cs.Add(second.chore(time.Hour))
		if err := <-stopped; err != nil || second.n.Load() == 0 || second.now.Load() != 0 {
			t.Errorf("Stop: %v; %d attempts, %d of them under way", err, second.n.Load(), second.now.Load())
		}
	})
}

func TestCloseDoesNotWaitForOneOfSeveralNodesThatCannotBeReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, cs := node(errNotNow), &Chores{One: true}
		cs.Add(a.chore(time.Hour))
		began := time.Now()
		if err := cs.Stop(t.Context()); err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("Stop: %v after %v", err, time.Since(began))
		}
	})
}
