package locker

import (
	"testing"

	"github.com/latchkit/latchkit/locker/store"
)

// Without an Observer, a lock allocates nothing for Observers.
func TestWithoutAnObserverNothingIsAllocatedForIt(t *testing.T) {
	e := newEngine(struct{ Store }{}, config{})
	a := &acquisition{caller: caller{engine: e, ctx: t.Context(), observed: t.Context()}}
	claim, grant := store.Claim{}, store.Grant{State: store.Granted}
	h := &hold{engine: e}
	holds, claims, grants := []*hold{h}, []store.Claim{claim}, []store.Grant{grant}
	allocated := testing.AllocsPerRun(100, func() {
		a.caller.observe()
		a.caller.meta = e.cfg.sign(a.caller.observed, "metadata")
		a.waiting.noteMet(&a.caller, h.user())
		a.waiting.noteWait(&a.caller, 1)
		a.waiting.noteHandoff(&a.caller, Peer{}, HandoffLocal, 1)
		a.waiting.endWait()
		e.keeper.notifyRenewals(e.keeper.collectRenewals([]int{0}, holds, claims, grants))
	})
	if allocated != 0 || a.waiting.sighting != nil || a.caller.meta != "metadata" {
		t.Errorf("%v allocations, sighting %v, metadata %q", allocated, a.waiting.sighting, a.caller.meta)
	}
}
