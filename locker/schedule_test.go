package locker

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Holds are added, moved and removed in random order. The schedule must return each hold that
// is due, and no hold too early, like a scan of all holds.
func TestAScheduleForgetsNobodyAndIsNeverLate(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := schedule{slots: make(map[int64][]*hold)}
		in := make(map[*hold]bool)
		now := instantOf(time.Now())
		later := func() instant {
			return now + instant(random.Int64N(int64(time.Second)>>random.IntN(30)))
		}
		for range 2000 {
			switch h := anyOf(in); random.IntN(5) {
			case 0, 1:
				h := new(hold)
				h.renewal.renewAt = later()
				h.renewal.deadline.store(later())
				s.add(h)
				in[h] = true
			case 2:
				if h != nil {
					h.renewal.renewAt = later()
					h.renewal.deadline.store(later())
					s.reschedule(h)
				}
			case 3:
				if h != nil {
					s.remove(h)
					delete(in, h)
				}
			default:
				now += instant(random.Int64N(int64(100 * time.Millisecond)))
				due, _ := s.until(now)
				for _, h := range due {
					if !in[h] || h.renewal.lookTime() > now {
						t.Fatalf("seed %d: %v too early, or not there", seed, h.renewal.lookTime().sub(now))
					}
					s.remove(h)
					delete(in, h)
				}
			}
			count, first := 0, instant(0)
			for h := range s.holds() {
				if !in[h] || h.renewal.index == 0 {
					t.Fatalf("seed %d: it has a hold that was removed", seed)
				}
				if count++; first == 0 || h.renewal.lookTime() < first {
					first = h.renewal.lookTime()
				}
			}
			if count != len(in) {
				t.Fatalf("seed %d: %d of %d holds", seed, count, len(in))
			}
			if due, next := s.until(now); first > now && (len(due) > 0 || next == 0 || next > first) {
				t.Fatalf("seed %d: it says %v of a hold that is due at %v", seed, next, first)
			} else if first <= now && first != 0 && len(due) == 0 {
				t.Fatalf("seed %d: it forgets a hold that was due at %v", seed, first)
			}
		}
	}
}

// anyOf returns one of the holds, or nil if there is none.
func anyOf(holds map[*hold]bool) *hold {
	for h := range holds {
		return h
	}
	return nil
}
