package chaos_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// loss is a fault after which a server may have forgotten leases. Two holders are then possible for
// a while, and docs/guarantees.md says so.
type loss struct {
	what string
	span
}

// overlap is a time in which two believed to hold a lock that admits one of them.
type overlap struct {
	First, Second string
	Length        time.Duration
	Documented    string // the documented cause, "": there is none
	At            instant
	first, second *hold
}

// logged is a row of the database: one committed increment.
type logged struct {
	op     string
	key    string
	before int64
	fence  uint64
}

// verdict is what the checker finds in a history.
type verdict struct {
	Grants, Writes, Reads   int
	Stale, Unclear, Refused int // writes
	Late, LateStale         int // writes after their holds; of these, refused for their old fences
	Losses, Told            int // leases that ended before their release; of these, before the next grant
	Unanswered, Handoffs    int
	Killed                  int             // holds whose processes were killed
	Behind                  int             // grants with a smaller fence than an earlier grant, after a documented loss
	Waits                   int             // acquires without a grant
	Overdue                 []time.Duration // of these, how much later they came back than their deadlines
	Overlaps                []overlap
	LostUpdates             int
	ForNobody               int // keys that a call has locked after its undo
	Violations              []string
}

func (v *verdict) violated(format string, args ...any) {
	v.Violations = append(v.Violations, fmt.Sprintf(format, args...))
}

// oldWrite is part of the text of a violation.
const oldWrite = "reached the database after fence"

// lateness is how much later than its context or Wait an acquire may return. On a machine whose
// processors are taken by others, a few calls are later than that. So some late calls are only
// counted, unless one is later than tooLate.
const (
	lateness = 250 * time.Millisecond
	tooLate  = 1250 * time.Millisecond
)

// check reads the history of a round. limit is how many units of a key may be held together, 0 for
// locks. The losses are the times in which servers may have forgotten leases.
func check(h *history, limit int, losses []loss, rows []logged, final map[string]int64) *verdict {
	v := &verdict{}
	v.Violations = append(v.Violations, h.wrong...)
	byKey := map[string][]*hold{}
	for _, one := range h.holds {
		byKey[one.key] = append(byKey[one.key], one)
		v.Grants++
		switch one.reason {
		case "lost":
			v.Losses++
		case "":
			v.Killed++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		holds := byKey[key]
		if limit > 0 {
			v.countUnits(holds, limit, losses)
			v.checkUnique(holds)
		} else {
			v.findOverlaps(holds, losses)
			v.checkFences(holds, losses)
		}
		v.countHandoffs(holds)
	}
	v.Told = v.Losses - v.toldLate()
	v.checkWaits(h)
	v.checkWrites(h, rows, final, losses)
	return v
}

// findOverlaps finds two holders at once. A holder that was killed is not asked any more.
func (v *verdict) findOverlaps(holds []*hold, losses []loss) {
	type phase struct {
		process string
		fence   uint64
	}
	began := map[phase]instant{}
	var before []*hold // those that may still be alive
	for _, b := range holds {
		// A reader joins the lease of its process, which may be older than the loss, without a call.
		at, joins := began[phase{b.process, b.fence}]
		if b.leased = b.asked; b.shared && joins {
			b.leased = min(at, b.asked)
		} else if b.shared {
			began[phase{b.process, b.fence}] = b.asked
		}
		before = slices.DeleteFunc(before, func(a *hold) bool { return a.alive < b.granted })
		for _, a := range before {
			if !a.shared || !b.shared {
				v.addOverlap(a, b, losses)
			}
		}
		before = append(before, b)
	}
}

func (v *verdict) addOverlap(a, b *hold, losses []loss) {
	o := overlap{a.id, b.id, min(a.alive, max(b.alive, b.granted)).since(b.granted), "", b.granted, a, b}
	for _, l := range losses {
		// After the loss, the former holder believes in its lease until its next renewal, or until
		// its deadline. Of two masters, either holder may be that of the former one, and may hand its
		// lease on inside its process.
		end := l.to.add(roundTTL + 50*time.Millisecond)
		allowed := a.leased <= l.to && a.alive <= end
		if l.what == twoMasters {
			allowed = o.At.add(o.Length) <= end
		}
		if allowed && l.from <= b.granted {
			o.Documented = l.what
		}
	}
	if o.Documented == "" {
		v.violated("two hold %s for %v: %s with fence %d, from %d, and %s with fence %d, from %d", a.key, o.Length, a.id, a.fence, a.granted, b.id, b.fence, b.granted)
	}
	v.Overlaps = append(v.Overlaps, o)
}

// toldLate counts the leases that were lost, and whose holders were told only after the next grant.
func (v *verdict) toldLate() int {
	late := map[string]bool{}
	for _, o := range v.Overlaps {
		if o.first.reason == "lost" {
			late[o.First] = true
		}
	}
	return len(late)
}

// checkFences finds a fence that is not larger than the fence of a grant that came before the
// acquire began. Readers of one phase have one fence, and no writer may come in between. After a
// loss, the process of a former holder hands its lease on until its next renewal.
func (v *verdict) checkFences(holds []*hold, losses []loss) {
	granted := slices.Clone(holds) // by grant
	asked := slices.Clone(holds)
	slices.SortFunc(asked, func(a, b *hold) int { return cmp.Compare(a.asked, b.asked) })
	var largest, largestWriter uint64
	i := 0
	for _, b := range asked {
		for ; i < len(granted) && granted[i].granted < b.asked; i++ {
			largest = max(largest, granted[i].fence)
			if !granted[i].shared {
				largestWriter = max(largestWriter, granted[i].fence)
			}
		}
		switch {
		case b.fence == 0:
			return // the library has no fences
		case b.shared && b.fence >= largest && b.fence > largestWriter, !b.shared && b.fence > largest:
		case fencesMayFall(losses, span{b.granted, b.granted}):
			v.Behind++
		default:
			v.violated("fence %d of %s at %s, after %d", b.fence, b.id, b.key, max(largest, largestWriter))
		}
	}
	v.checkUnique(slices.DeleteFunc(granted, func(h *hold) bool { return h.shared }))
	phases := map[uint64]bool{}
	for _, one := range holds {
		if one.shared {
			phases[one.fence] = true
		}
	}
	for _, one := range holds {
		if !one.shared && phases[one.fence] {
			v.violated("%s writes with fence %d, which readers have", one.id, one.fence)
		}
	}
}

// fencesMayFall reports whether a smaller fence than before is documented in the time: in a loss,
// and for as long after it as a former holder may keep its lease. When the counters are lost and
// the clock of the server was ahead before, fences grow again when the clock has passed that time.
func fencesMayFall(losses []loss, in span) bool {
	ahead := time.Duration(0)
	for _, l := range losses {
		if strings.HasPrefix(l.what, "clock") {
			ahead = mostAhead
		}
		if in.meets(span{l.from, l.to.add(roundTTL + 50*time.Millisecond + ahead)}) {
			return true
		}
	}
	return false
}

// mostAhead is by how much a nemesis sets the clock of a server, at most, in either direction.
const mostAhead = 3 * time.Second

func (v *verdict) checkUnique(holds []*hold) {
	owner := map[uint64]string{}
	for _, one := range holds {
		if other, taken := owner[one.fence]; taken && one.fence != 0 {
			v.violated("%s and %s have the same fence %d at %s", other, one.id, one.fence, one.key)
		}
		owner[one.fence] = one.id
	}
}

// countUnits finds more units in use than the limit allows.
func (v *verdict) countUnits(holds []*hold, limit int, losses []loss) {
	var before []*hold
	for _, b := range holds {
		before = slices.DeleteFunc(before, func(a *hold) bool { return a.alive < b.granted })
		used := b.units
		b.leased = b.asked
		for _, a := range before {
			used += a.units
		}
		if used > limit {
			v.addOverlap(before[0], b, losses)
		}
		before = append(before, b)
	}
}

// countHandoffs counts the grants to callers that were waiting when the former holder released.
func (v *verdict) countHandoffs(holds []*hold) {
	for i := range holds[1:] {
		if a, b := holds[i], holds[i+1]; a.process != b.process && b.asked < a.alive && a.reason == "released" {
			v.Handoffs++
		}
	}
}

// checkWaits finds acquires that came back too late. The time in which the caller's process did not
// run does not count.
func (v *verdict) checkWaits(h *history) {
	v.Waits = len(h.waits)
	for _, w := range h.waits {
		if w.class == "unavailable" || w.class == "quorum" {
			v.Unanswered++
		}
		late := w.returned.since(w.deadline) - h.stalledIn(w.process, span{w.deadline, w.returned})
		if late > lateness {
			v.Overdue = append(v.Overdue, late)
		}
		if late > tooLate {
			v.violated("an acquire of %s, which ended with %q, came back %v after its deadline", w.process, w.class, late)
		}
	}
	if len(v.Overdue) > 5+len(h.waits)/100 {
		v.violated("%d of %d acquires without a grant came back more than %v after their deadlines: %v", len(v.Overdue), len(h.waits), lateness, v.Overdue)
	}
}

// checkWrites compares what the processes were told with the rows of the database, and asks
// porcupine whether the reads and increments of each key have an order.
func (v *verdict) checkWrites(h *history, rows []logged, final map[string]int64, losses []loss) {
	there := map[string]logged{}
	byKey := map[string][]logged{}
	for _, r := range rows {
		there[r.op] = r
		byKey[r.key] = append(byKey[r.key], r)
	}
	for key, of := range byKey {
		v.checkOrder(of)
		if int(final[key]) != len(of) {
			v.violated("%s: %d increments were committed, and the value is %d", key, len(of), final[key])
		}
	}
	if v.LostUpdates > 0 {
		v.violated("%d increments were lost", v.LostUpdates)
	}
	var ops []porcupine.Operation
	for _, w := range h.writes {
		if w.late {
			continue
		}
		row, committedRow := there[w.op]
		switch w.result {
		case committed:
			v.Writes++
			if w.reads {
				v.Writes--
				v.Reads++
			} else if !committedRow {
				v.violated("the write of %s was acknowledged, and the database does not have it", w.op)
			}
		case stale:
			v.Stale++
		case regressed: // after a loss, the server may have granted the lock to two, and the smaller fence is refused
			v.Stale++
			if !fencesMayFall(losses, span{w.called, w.returned}) {
				v.violated("the database has seen a larger fence than %d of %s, and no server has lost data", w.fence, w.op)
			}
		case unclear:
			v.Unclear++
		default:
			v.Refused++
		}
		if committedRow && (w.result == stale || w.result == regressed || w.result == refused) {
			v.violated("the write of %s was %s, and the database has it", w.op, w.result)
		}
		o := porcupine.Operation{Input: w, Output: w.before, Call: int64(w.called), Return: int64(w.returned)}
		if w.reads && w.result == committed {
			ops = append(ops, o)
		} else if committedRow {
			o.Output = row.before
			if w.result == unclear {
				o.Return = int64(never)
			}
			ops = append(ops, o)
		}
		delete(there, w.op)
	}
	for _, r := range there { // killed before they were told
		v.Unclear++
		ops = append(ops, porcupine.Operation{Input: write{op: r.op, key: r.key}, Output: r.before, Call: 0, Return: int64(never)})
	}
	for i := range ops {
		ops[i].ClientId = i
	}
	if result := porcupine.CheckOperationsTimeout(register, ops, 30*time.Second); result != porcupine.Ok {
		v.violated("porcupine: the %d reads and increments of the registers have no order: %s", len(ops), result)
	}
}

// checkOrder reads the committed writes of one key in the order of the database.
func (v *verdict) checkOrder(rows []logged) {
	slices.SortFunc(rows, func(a, b logged) int { return cmp.Compare(a.before, b.before) })
	seen := int64(-1)
	var fence uint64
	for _, r := range rows {
		if r.before == seen {
			v.LostUpdates++
			continue
		}
		if r.fence < fence {
			v.violated("the write of %s with fence %d %s %d", r.op, r.fence, oldWrite, fence)
		}
		seen, fence = r.before, r.fence
	}
}

// checkLate compares what became of the writes that came after their holds with the rows of the
// database.
func (v *verdict) checkLate(h *history, rows []logged) {
	there, byKey := map[string]bool{}, map[string][]logged{}
	for _, r := range rows {
		there[r.op] = true
		byKey[r.key] = append(byKey[r.key], r)
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		v.checkOrder(byKey[key])
	}
	for _, w := range h.writes {
		if !w.late {
			continue
		}
		v.Late++
		if w.result == stale {
			v.LateStale++
		}
		if there[w.op] != (w.result == committed) && w.result != unclear {
			v.violated("the late write of %s was %s; the database has it: %t", w.op, w.result, there[w.op])
		}
	}
}

// register is one number for each key, which is incremented and read.
var register = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range all {
			key := o.Input.(write).key
			byKey[key] = append(byKey[key], o)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		value := state.(int64)
		if output.(int64) != value {
			return false, value
		}
		if input.(write).reads {
			return true, value
		}
		return true, value + 1
	},
}

// recoveries returns, for a trouble that ended at the time end, how long it took until every key
// was granted again.
func (h *history) recovery(end instant) time.Duration {
	first := map[string]instant{}
	keys := map[string]bool{}
	for _, one := range h.holds {
		keys[one.key] = true
		if _, seen := first[one.key]; !seen && one.granted >= end {
			first[one.key] = one.granted
		}
	}
	if len(first) < len(keys) || len(keys) == 0 {
		return -1 // the round ended before
	}
	return slices.Max(slices.Collect(maps.Values(first))).since(end)
}
