package chaos_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var writePage = flag.Bool("write", false, "TestThePageOfFaults writes docs/faults.md and docs/faults.svg from the file of -record")

const pagePath, picturePath = "../../../docs/faults.md", "../../../docs/faults.svg"

// The page of the faults is made from the record of a run, and from nothing else.
func TestThePageOfFaults(t *testing.T) {
	if !*writePage {
		o := overlap{"a", "b", 7 * time.Millisecond, "FLUSHALL", 0, nil, nil}
		planted := []*result{
			{Commit: "1234abcd", Round: round{Topology: oneServer, Kind: kindExclusive, Seed: 7, For: 8 * time.Second}, Server: "Redis 7", Database: "pgx", Lasted: time.Minute, Troubles: 3,
				Faults:  map[string]*faultStat{"FLUSHALL": {Injected: 3, Operations: 40, Overlaps: 1, Recovery: []time.Duration{5 * time.Millisecond}}},
				Verdict: &verdict{Grants: 1234, Writes: 99, Stale: 4, Losses: 5, Told: 4, Overlaps: []overlap{o}, Violations: []string{"left behind: a key"}},
				Worst:   []bar{{Process: "w1", Label: "lost", From: 0, To: 9 * time.Millisecond, Fence: 12, Wrote: stale}}},
			{Commit: "1234abcd", Round: round{Topology: quorum3, Kind: kindLead, Seed: 8, For: 8 * time.Second}, Server: "Redis 7", Database: "pgx", Verdict: &verdict{}},
			{Commit: "1234abcd", Round: round{Topology: quorum3, Kind: kindLead, Seed: 100, For: 8 * time.Second}, Server: "Valkey 9", Database: "sqlite", Verdict: &verdict{}},
			{Control: "redsync", Round: round{Library: "redsync"}, Verdict: &verdict{Grants: 50, LostUpdates: 2, Overlaps: []overlap{{}}}},
		}
		page, picture := pageOf(planted, "a machine")
		for _, want := range []string{"| grants | 1,234 |", `| <a id="fault-flushall"></a>FLUSHALL | 3 | 40 | 1 | 0 | 5 ms | 5 ms |`, "commit 1234abcd", "7 to 8 on Redis 7,\n  100 to 100 on Valkey 9", "-seed 7 -round 8s -for 22s", "a machine", "| exclusive | 1 | 0 | 0 | 0 | 0 | 0 |", "| polling | 0 | 0 | 0 | – | – | – |", "**36 of these 38 were never attacked**", "* round 7 (one server, exclusive): left behind: a key", "| redsync |", "| 50 | 2 | 1 | 0 |"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q:\n%s", want, page)
			}
		}
		if !strings.Contains(picture, "fence 12") {
			t.Errorf("the picture lacks the fence:\n%s", picture)
		}
		return
	}
	file, err := os.Open(*record)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []*result
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		res := &result{}
		if err := json.Unmarshal(lines.Bytes(), res); err != nil {
			t.Fatal(err)
		}
		all = append(all, res)
	}
	page, picture := pageOf(all, machine())
	for path, text := range map[string]string{pagePath: page, picturePath: picture} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // a page that everybody reads
			t.Fatal(err)
		}
	}
}

func machine() string {
	model := "unknown processor"
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d cores (%s), %s", runtime.NumCPU(), model, runtime.Version())
}

// seriesOf returns the rows of successive numbers in seeds, which are sorted.
func seriesOf(seeds []uint64) (series [][]uint64) {
	for i, seed := range seeds {
		if i == 0 || seed > seeds[i-1]+1 {
			series = append(series, nil)
		}
		series[len(series)-1] = append(series[len(series)-1], seed)
	}
	return series
}

func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func percentile(of []time.Duration, p int) string {
	if len(of) == 0 {
		return "–"
	}
	slices.Sort(of)
	d := of[min(len(of)-1, len(of)*p/100)]
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

func (s *faultStat) add(o *faultStat) {
	s.Injected += o.Injected
	s.Operations += o.Operations
	s.Overlaps += o.Overlaps
	s.Undocumented += o.Undocumented
	s.Recovery = append(s.Recovery, o.Recovery...)
}

// pageOf returns the page and the picture of a recorded run.
func pageOf(all []*result, machine string) (page, picture string) {
	sum, lasted, troubles := &verdict{}, time.Duration(0), 0
	faults := map[string]*faultStat{}
	sets, servers, databases := map[string]*verdict{}, map[string]bool{}, map[string]bool{}
	rounds, commits := map[string]int{}, map[string]bool{}
	twice, beyond := 0, 0 // times when two held a lock of a quorum; of these, undocumented ones
	var each time.Duration
	var seeds []uint64
	var violations []string
	serverOf := map[uint64]string{}
	var worst *result
	longest := time.Duration(-1)
	stat := func(m map[string]*faultStat, key string) *faultStat {
		if m[key] == nil {
			m[key] = &faultStat{}
		}
		return m[key]
	}
	for _, res := range all {
		if res.Control != "" {
			continue
		}
		for _, text := range res.Verdict.Violations {
			violations = append(violations, fmt.Sprintf("round %d (%s, %s): %s", res.Round.Seed, res.Round.Topology, res.Round.Kind, text))
		}
		sum.add(res.Verdict)
		lasted, troubles = lasted+res.Lasted, troubles+res.Troubles
		servers[res.Server], databases[res.Database] = true, true
		commits[res.Commit], each = true, res.Round.For
		seeds = append(seeds, res.Round.Seed)
		serverOf[res.Round.Seed] = res.Server
		rounds[res.Round.Kind+" on "+res.Round.Topology]++
		for _, set := range []string{"on: " + res.Round.Topology, "kind: " + res.Round.Kind} {
			if sets[set] == nil {
				sets[set] = &verdict{}
			}
			sets[set].add(res.Verdict)
			rounds[set]++
		}
		if nodesOf[res.Round.Topology] > 0 {
			twice, beyond = twice+len(res.Verdict.Overlaps), beyond+undocumented(res.Verdict)
		}
		for name, s := range res.Faults {
			stat(faults, name).add(s)
		}
		for _, o := range res.Verdict.Overlaps {
			if o.Length > longest && len(res.Worst) > 0 {
				longest, worst = o.Length, res
			}
		}
	}
	slices.Sort(seeds)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# What the locks do under faults")
	line("")
	line("<!-- Written by make soak, from the record of a run. Change internal/tests/chaos/page_test.go instead. -->")
	line("")
	line("Four processes with three callers each lock 3 to 5 keys, and increment a register in a database")
	line("under these locks, with sqllock. In some rounds, each process has %d callers, who lock %d keys for", briskCallers, briskKeys)
	line("short times, and one hold in six writes. After a hold, a holder also sends a write to a service that")
	line("knows nothing but the fence, up to two TTLs late. Meanwhile faults strike, one to three at a time. A")
	line("checker compares what each process saw, by one monotonic clock, with the database.")
	line("[guarantees.md](guarantees.md) says what is promised; this page shows one run.")
	line("")
	line("* **The run**: %d rounds with faults for %v in all,\n  on %s,", len(seeds), lasted.Round(time.Second), strings.Join(slices.Sorted(maps.Keys(servers)), " and "))
	line("  with %s, with the locks of commit %s.\n  A longer run shows more.", databaseNames(databases), strings.Join(slices.Sorted(maps.Keys(commits)), " and "))
	line("* **The machine**: %s, perhaps with other programs on it.", machine)
	series := seriesOf(seeds)
	texts, most := make([]string, 0, len(series)), 0
	for _, one := range series {
		texts, most = append(texts, fmt.Sprintf("%d to %d on %s", one[0], one[len(one)-1], serverOf[one[0]])), max(most, len(one))
	}
	line("* **The seeds**, one for each round: %s.", strings.Join(texts, ",\n  "))
	line("* **Repeat it**: for each row of seeds, the same rounds, with the same faults at about the same")
	line("  times, are")
	line("  `go test ./internal/tests/chaos -run TestChaos -v -seed %d -round %v -for %v`,", first(seeds), each, (time.Duration(most) * (each + 3*time.Second)).Round(time.Second))
	line("  with the row's redis-server first in PATH. `make soak` runs rounds for an hour, with new seeds and")
	line("  a row on each of these servers at the same time, and writes this page anew.")
	line("")
	line("## What happened")
	line("")
	line("| | |")
	line("|---|---|")
	for _, row := range []struct {
		what string
		n    int
	}{
		{"grants", sum.Grants}, {"troubles, of one to three faults", troubles},
		{"increments that were committed", sum.Writes},
		{"**increments that were lost**", sum.LostUpdates},
		{"writes that came after their hold, with nothing but the fence", sum.Late},
		{"of these, refused because a newer holder had written", sum.LateStale},
		{"transactions of sqllock that the database refused, because of an old fence", sum.Stale},
		{"leases that ended before their release", sum.Losses}, {"of these, told before the next grant", sum.Told},
		{"times when two believed to hold a lock, without the fence", len(sum.Overlaps)},
		{"of these, outside of the windows that guarantees.md names", undocumented(sum)},
		{"**writes of a former holder that reached the database**", oldWrites(sum)},
		{`<a id="quorums"></a>times when two believed to hold a lock of a quorum`, twice},
		{"of these, outside of the windows that [quorum.md](quorum.md) states", beyond},
		{"grants with a smaller fence than an earlier one, in such a window", sum.Behind},
		{"acquires without a grant", sum.Waits},
		{"of these, back more than 250 ms after their context or Wait", len(sum.Overdue)},
		{"other violations", len(sum.Violations) - undocumented(sum)},
	} {
		line("| %s | %s |", row.what, thousands(row.n))
	}
	if len(violations) > 0 {
		line("")
		line("Each violation:")
		line("")
		for _, text := range violations {
			what, _, _ := strings.Cut(text, ": [") // the list of durations is in the record
			line("* %s", wrapped(what))
		}
	}
	line("")
	line("## Each fault")
	line("")
	line("*Operations* are grants, refusals and transactions during the fault or within a TTL (400 ms) after")
	line("it. *Two holders* are the times when two believed to hold a lock: *documented* after a loss of data,")
	line("a failover or a step of the server's clock. *Recovery* is the time from the end of the trouble until")
	line("every key was granted again; the holds of other callers are part of it. Faults strike together, so")
	line("each of them counts what happened.")
	line("")
	line("| fault | injected | operations | two holders, documented | other | recovery p50 | p99 |")
	line("|---|---|---|---|---|---|---|")
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		s := faults[name]
		line(`| <a id="%s"></a>%s | %d | %s | %d | %d | %s | %s |`, anchor(name), name, s.Injected, thousands(s.Operations), s.Overlaps-s.Undocumented, s.Undocumented, percentile(s.Recovery, 50), percentile(s.Recovery, 99))
	}
	line("")
	line("## Each topology and each kind of lock")
	line("")
	line("| topology or kind | rounds | grants | hand-offs | increments | lost increments | refused old fences | leases lost | two holders | other violations |")
	line("|---|---|---|---|---|---|---|---|---|---|")
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		v := sets[set]
		line("| %s | %d | %s | %s | %s | %d | %d | %d | %d | %d |", set, rounds[set], thousands(v.Grants), thousands(v.Handoffs), thousands(v.Writes), v.LostUpdates, v.Stale+v.LateStale, v.Losses, len(v.Overlaps), len(v.Violations))
	}
	line("")
	roundsOf(rounds, line)
	line("")
	line("## Controls")
	line("")
	line("The same checker, but one rule is left out, or another library locks: here it must find violations,")
	line("or the run above shows nothing. The rows \"with the rule\" have the same faults. The other libraries")
	line("have no fences, so they do not promise what the column *lost increments* shows. They lock as their")
	line("READMEs show, with the TTL of the run; rueidislock extends its locks, the others are not extended.")
	line("")
	line("| control | faults | grants | lost increments | two holders | keys locked for nobody |")
	line("|---|---|---|---|---|---|")
	controlsOf(all, line)
	line("")
	if worst != nil {
		line("## The longest time with two holders")
		line("")
		line("![holds of one key, and the faults](faults.svg)")
		line("")
		line("Round %d (%s, %s). Each bar is a hold of one key, from the grant", worst.Round.Seed, worst.Round.Topology, worst.Round.Kind)
		line("to the last look that said that the lock is held. The longest time with too many holders is %v.", longest.Round(time.Millisecond))
		picture = draw(worst.Worst)
	}
	return b.String(), picture
}

// wrapped breaks a text of the list into lines.
func wrapped(text string) string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		if last := &lines[len(lines)-1]; len(*last)+len(word) < 96 {
			*last = strings.TrimSpace(*last + " " + word)
		} else {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, "\n  ")
}

// anchor returns the name of the place of a fault in the page, for links.
func anchor(fault string) string {
	fault, _, _ = strings.Cut(fault, " (")
	return "fault-" + strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(fault, ":", "")), " ", "-")
}

// oldWrites counts the violations of this kind.
func oldWrites(v *verdict) (n int) {
	for _, text := range v.Violations {
		if strings.Contains(text, oldWrite) {
			n++
		}
	}
	return n
}

func first(seeds []uint64) uint64 {
	if len(seeds) == 0 {
		return 0
	}
	return seeds[0]
}

func databaseNames(drivers map[string]bool) string {
	var names []string
	for _, d := range slices.Sorted(maps.Keys(drivers)) {
		names = append(names, map[string]string{"pgx": "PostgreSQL", "sqlite": "SQLite"}[d])
	}
	return strings.Join(names, " and ")
}

// roundsOf tells how often each kind of lock was attacked on each topology.
func roundsOf(rounds map[string]int, line func(format string, args ...any)) {
	all, never := map[string]bool{}, 0
	for _, r := range possible() {
		set := r.Kind + " on " + r.Topology
		if all[set] = true; rounds[set] == 0 {
			never++
		}
	}
	line("Rounds of each kind on each topology; – if a topology does not have this kind:")
	line("")
	line("| kind | %s |", strings.Join(topologies, " | "))
	line("|---|%s", strings.Repeat("---|", len(topologies)))
	for _, kind := range kinds {
		row := "| " + kind
		for _, on := range topologies {
			if set := kind + " on " + on; all[set] {
				row += fmt.Sprint(" | ", rounds[set])
			} else {
				row += " | –"
			}
		}
		line("%s |", row)
	}
	if never > 0 {
		line("")
		line("**%d of these %d were never attacked**: the run shows nothing of them.", never, len(all))
	}
}

func controlsOf(all []*result, line func(format string, args ...any)) {
	sums, names := map[string]*verdict{}, []string{}
	faults := map[string]string{}
	for _, res := range all {
		if res.Control == "" {
			continue
		}
		if sums[res.Control] == nil {
			sums[res.Control] = &verdict{}
			names = append(names, res.Control)
		}
		sums[res.Control].add(res.Verdict)
		faults[res.Control] = strings.Join(res.Round.Only, ", ")
	}
	for _, name := range names {
		v := sums[name]
		line("| %s | %s | %s | %d | %d | %d |", name, faults[name], thousands(v.Grants), v.LostUpdates, len(v.Overlaps), v.ForNobody)
	}
}

// draw returns an SVG of the bars, one row for each process.
func draw(bars []bar) string {
	const left, width, height = 90, 900, 22
	var processes []string
	end := time.Duration(1)
	for _, b := range bars {
		if !slices.Contains(processes, b.Process) {
			processes = append(processes, b.Process)
		}
		end = max(end, b.To)
	}
	slices.Sort(processes)
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", left+width+10, (len(processes)+2)*height)
	s.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	x := func(d time.Duration) float64 { return left + float64(d)/float64(end)*width }
	for i, p := range processes {
		fmt.Fprintf(&s, `<text x="4" y="%d">%s</text>`+"\n", i*height+15, html.EscapeString(p))
	}
	for _, b := range bars {
		row := slices.Index(processes, b.Process)
		colour := map[string]string{"released": "#4c8f5b", "lost": "#c0504d", "unclear": "#c79b2e"}[b.Label]
		label := fmt.Sprintf("fence %d, %s", b.Fence, cmp.Or(b.Label, "killed"))
		if b.Wrote != "" {
			label += ", its write: " + b.Wrote
		}
		if b.Process == "fault" {
			colour, label = "#9aa5b1", b.Label
		}
		fmt.Fprintf(&s, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="0.8"><title>%s</title></rect>`+"\n",
			x(b.From), row*height+3, max(x(b.To)-x(b.From), 1.5), height-6, cmp.Or(colour, "#777777"), html.EscapeString(label))
		if x(b.To)-x(b.From) > 120 {
			fmt.Fprintf(&s, `<text x="%.1f" y="%d" fill="#000000">%s</text>`+"\n", x(b.From)+3, row*height+15, html.EscapeString(label))
		}
	}
	for i := range 6 {
		at := end * time.Duration(i) / 5
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%d ms</text>`+"\n", x(at), (len(processes)+1)*height, at.Milliseconds())
	}
	s.WriteString("</svg>\n")
	return s.String()
}
