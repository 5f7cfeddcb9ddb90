package locker

import (
	"testing"

	"github.com/latchkit/latchkit/locker/store"
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
