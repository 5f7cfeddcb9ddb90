package chaos_test

import (
	"strings"
	"testing"
	"time"
)

// The checker must find planted mistakes, and no other. Otherwise a run without violations would
// show nothing.
func TestTheCheckerFindsPlantedMistakes(t *testing.T) {
	ms := func(n int) instant { return instant(n) * instant(time.Millisecond) }
	good := func() *history {
		return &history{
			holds: []*hold{
				{id: "a", process: "p", key: "k", units: 1, fence: 5, asked: ms(0), granted: ms(10), alive: ms(20), ended: ms(21), reason: "released"},
				{id: "b", process: "q", key: "k", units: 1, fence: 6, asked: ms(12), granted: ms(22), alive: ms(30), ended: ms(31), reason: "lost"},
				{id: "c", process: "p", key: "k", units: 1, fence: 7, asked: ms(25), granted: ms(40), alive: ms(50), ended: ms(51), reason: "released"},
			},
			writes: []write{
				{op: "a", key: "k", fence: 5, before: 0, result: committed, called: ms(11), returned: ms(12)},
				{op: "c", key: "k", fence: 7, before: 1, result: committed, called: ms(41), returned: ms(42)},
			},
			waits:  []wait{{process: "p", class: "busy", asked: ms(0), deadline: ms(100), returned: ms(200)}},
			stalls: map[string][]span{},
		}
	}
	rows := func() []logged { return []logged{{"a", "k", 0, 5}, {"c", "k", 1, 7}} }
	for name, c := range map[string]struct {
		plant func(h *history, rows *[]logged, value *int64)
		want  string // part of the violation; "": none
	}{
		"nothing":                 {func(*history, *[]logged, *int64) {}, ""},
		"two holders":             {func(h *history, _ *[]logged, _ *int64) { h.holds[0].alive = ms(25) }, "two hold"},
		"a fence that fell":       {func(h *history, _ *[]logged, _ *int64) { h.holds[2].fence = 4 }, "fence 4 of c"},
		"a fence that came twice": {func(h *history, _ *[]logged, _ *int64) { h.holds[2].fence, h.holds[2].asked = 6, ms(1) }, "same fence"},
		"a late return":           {func(h *history, _ *[]logged, _ *int64) { h.waits[0].returned = ms(1400) }, "after its deadline"},
		"a late return while it stood still": {func(h *history, _ *[]logged, _ *int64) {
			h.waits[0].returned, h.stalls["p"] = ms(1400), []span{{ms(50), ms(1350)}}
		}, ""},
		"a lost update":                 {func(_ *history, r *[]logged, v *int64) { (*r)[1].before, *v = 0, 1 }, "increments were lost"},
		"a stale write":                 {func(_ *history, r *[]logged, _ *int64) { (*r)[1].fence = 4 }, "reached the database after fence"},
		"a lost acknowledged write":     {func(_ *history, r *[]logged, v *int64) { *r, *v = (*r)[:1], 1 }, "does not have it"},
		"a refused write that is there": {func(h *history, _ *[]logged, _ *int64) { h.writes[1].result = stale }, "the database has it"},
		"a refusal without a loss":      {func(h *history, r *[]logged, v *int64) { h.writes[1].result, *r, *v = regressed, (*r)[:1], 1 }, "no server has lost data"},
		"an order that cannot be":       {func(h *history, _ *[]logged, _ *int64) { h.writes[0].called, h.writes[0].returned = ms(43), ms(44) }, "have no order"},
	} {
		t.Run(name, func(t *testing.T) {
			h, r, value := good(), rows(), int64(2)
			c.plant(h, &r, &value)
			found := check(h, 0, nil, r, map[string]int64{"k": value}).Violations
			if text := strings.Join(found, "\n"); !strings.Contains(text, c.want) || c.want == "" && text != "" {
				t.Errorf("found %q, want %q", text, c.want)
			}
		})
	}
	h := good()
	h.holds[0].alive = ms(25)
	if v := check(h, 0, []loss{{"restart", span{ms(15), ms(20)}}}, rows(), map[string]int64{"k": 2}); len(v.Violations) > 0 || len(v.Overlaps) != 1 || v.Told != 1 {
		t.Errorf("after a loss, two holders are documented: %+v", v)
	}
	for process, violations := range map[string]int{"p": 0, "q": 1} { // a reader of the process that had the phase, and of another one
		v := &verdict{}
		v.findOverlaps([]*hold{
			{id: "a", process: "p", shared: true, fence: 5, asked: ms(0), granted: ms(10), alive: ms(20)},
			{id: "b", process: process, shared: true, fence: 5, asked: ms(21), granted: ms(21), alive: ms(50)},
			{id: "c", process: "r", fence: 6, asked: ms(30), granted: ms(40), alive: ms(60)},
		}, []loss{{"clock", span{ms(15), ms(20)}}})
		if len(v.Violations) != violations || len(v.Overlaps) != 1 {
			t.Errorf("a reader of %s beside a writer: %v", process, v.Violations)
		}
	}
	if v := check(good(), 1, nil, rows(), map[string]int64{"k": 2}); len(v.Violations) > 0 {
		t.Errorf("one unit of one: %v", v.Violations)
	}
	for name, c := range map[string]struct {
		result string
		rows   []logged
		want   string
	}{
		"a late write that is there":             {committed, []logged{{"a", "k", 0, 5}}, ""},
		"an old one that was refused":            {stale, []logged{{"c", "k", 0, 7}}, ""},
		"an old one that came after a newer one": {committed, []logged{{"c", "k", 0, 7}, {"a", "k", 1, 5}}, oldWrite},
		"one that is lost":                       {committed, nil, "has it: false"},
		"a refused one that is there":            {stale, []logged{{"a", "k", 0, 5}}, "has it: true"},
	} {
		v := &verdict{}
		v.checkLate(&history{writes: []write{{op: "a", key: "k", fence: 5, late: true, result: c.result}}}, c.rows)
		if text := strings.Join(v.Violations, "\n"); !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: found %q, want %q", name, text, c.want)
		}
	}
	h.holds[1].units = 2
	if v := check(h, 2, nil, rows(), map[string]int64{"k": 2}); len(v.Violations) == 0 {
		t.Error("three units of two were not found")
	}
}

// The leases that a plain loop loses too are no violation.
func TestTheCheckerFindsLeasesThatASteadyTroubleCosts(t *testing.T) {
	for name, c := range map[string]struct {
		ours, plain string // how the lease of each has ended
		grants      int
		want        string // part of the violation; "": none
	}{
		"both keep it":       {"released", "released", 1, ""},
		"one of ours":        {"lost", "released", 1, "lost 1 of"},
		"one of each":        {"lost", "lost", 1, ""},
		"no lock is granted": {"released", "released", 0, "got no lock"},
	} {
		h := &history{holds: []*hold{
			{process: holderNew, reason: c.ours}, {process: holderPlain, reason: c.plain}, {process: holderPlain, asked: 10},
		}}
		for range c.grants {
			h.holds = append(h.holds, &hold{process: holderNew, asked: 10})
		}
		v := &verdict{}
		v.checkSteady(h, 5, holderNew)
		if text := strings.Join(v.Violations, "\n"); !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: found %q, want %q", name, text, c.want)
		}
	}
}
