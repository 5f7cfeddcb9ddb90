package locker

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/latchkit/latchkit/internal/store"
)

// silent is a Store that sends no events. The test delivers events to the post itself.
type silent struct {
	store.Store
	store.Notifier
}

// When a slot of a cluster has moved, only the waiters at its inbox may have missed events, so only
// they ask again. Otherwise all waiters would ask thousands of times when a cluster moves thousands
// of slots.
func TestAnInboxThatIsOpenAgainConcernsItsWaitersOnly(t *testing.T) {
	p := &post{engine: &Engine{}, notifier: silent{}, boxes: make(map[string]*mailbox)}
	here, elsewhere := &mailbox{key: "a", inbox: "one"}, &mailbox{key: "b", inbox: "two"}
	p.register("A", here)
	p.register("B", elsewhere)
	for inbox, want := range map[string][2]bool{"one": {true, false}, "two": {false, true}, "": {true, true}} {
		p.deliver(store.Event{Kind: store.EventReopened, Inbox: inbox})
		got := [2]bool{p.takeNews(here).reopened, p.takeNews(elsewhere).reopened}
		if got != want {
			t.Errorf("inbox %q: told %v, want %v", inbox, got, want)
		}
	}
}

// hangingReset is a Notifier whose Resets of the inbox "dead" hang.
type hangingReset struct {
	silent
	reset chan string
	hang  chan struct{}
}

func (h hangingReset) Reset(inbox string) {
	h.reset <- inbox
	if inbox == "dead" {
		<-h.hang
	}
}

// On a Cluster, each master has an inbox. A master that does not answer keeps no other inbox
// without a subscription, and each inbox has one Reset at a time.
func TestAHangingResetDelaysNoOtherInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := hangingReset{reset: make(chan string, 10), hang: make(chan struct{})}
		p := &post{engine: &Engine{}, notifier: n, boxes: make(map[string]*mailbox)}
		for _, inbox := range []string{"dead", "dead", "alive", "alive", "dead"} {
			p.resubscribe(inbox)
			synctest.Wait()
		}
		close(n.hang)
		synctest.Wait()
		p.resubscribe("dead")
		synctest.Wait()
		close(n.reset)
		_ = p.engine.calls.Stop(t.Context())
		var got []string
		for inbox := range n.reset {
			got = append(got, inbox)
		}
		if want := []string{"dead", "alive", "alive", "dead"}; !slices.Equal(got, want) {
			t.Errorf("Resets of %v, want %v", got, want)
		}
	})
}
