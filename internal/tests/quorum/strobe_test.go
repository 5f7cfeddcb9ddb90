package quorum

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
)

// The wall clock of one server jumps to and fro while five processes lock: for a moment, or for
// longer than a lease, by less than WithMaxSkew allows, and by hours. No two hold a key at once,
// and no fence goes back.
func TestAClockStrobe(t *testing.T) {
	for _, readers := range []bool{false, true} {
		t.Run(fmt.Sprint("readers ", readers), func(t *testing.T) {
			t.Parallel()
			first, clock := redistest.StartWithClock(t)
			servers := []*redistest.Server{first, redistest.Start(t), redistest.Start(t)}
			_, engines := processes(t, servers, readers)
			jumps := []time.Duration{20 * time.Millisecond, 40 * time.Millisecond, time.Second, 5 * time.Second, time.Hour}
			lockFor(t, *soakFor, engines, readers, func() {
				by := jumps[rand.IntN(len(jumps))]
				if rand.IntN(2) == 0 {
					by = -by
				}
				for range 1 + rand.IntN(20) {
					clock.Set(by)
					time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond)
					clock.Set(0)
					time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond)
				}
				if rand.IntN(3) == 0 {
					time.Sleep(soakWait + 500*time.Millisecond)
				}
			})
		})
	}
}
