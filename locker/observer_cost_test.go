package locker

import (
	"testing"

	"github.com/latchkit/latchkit/locker/store"
)

// Without an Observer, a lock allocates nothing for Observers.
func TestWithoutAnObserverNothingIsAllocatedForIt(t *testing.T) {
	e := newEngine(struct{ Store }{}, config{})
	a := &acquisition{engine: e, caller: t.Context(), ctx: t.Context()}
	claim, grant := store.Claim{}, store.Grant{State: store.Granted}
	h := &hold{engine: e}
	holds, claims, grants := []*hold{h}, []store.Claim{claim}, []store.Grant{grant}
	allocated := testing.AllocsPerRun(100, func() {
		a.observe()
		a.meta = e.cfg.sign(a.ctx, "metadata")
		a.noteMet(h.user())
		a.noteWait(1)
		a.noteHandoff(Peer{}, HandoffLocal, 1)
		a.endWait()
		e.keeper.notifyRenewals(e.keeper.collectRenewals([]int{0}, holds, claims, grants))
	})
	if allocated != 0 || a.sighting != nil || a.meta != "metadata" {
		t.Errorf("%v allocations, sighting %v, metadata %q", allocated, a.sighting, a.meta)
	}
}
