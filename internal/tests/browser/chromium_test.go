package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/latchkit/latchkit/internal/redistest"
)

var (
	update     = flag.Bool("update", false, "write the screenshots of the documents anew")
	allScreens = flag.Bool("all", false, "test four screens instead of two")
)

// axe finds what keeps people with a screen reader or weak eyes from reading a page.
//
//go:embed testdata/axe.min.js
var axe string

// chromium is the context of the browser that all tests share.
var chromium context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath("chromium"),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("font-render-hinting", "none"))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	var closeBrowser context.CancelFunc
	chromium, closeBrowser = chromedp.NewContext(allocator)
	if err := chromedp.Do(chromium); err != nil {
		fmt.Fprintf(os.Stderr, "start chromium: %v; run .ci/install-servers\n", err)
		os.Exit(1)
	}
	redistest.Main(afterwards{m, func() { closeBrowser(); stop() }})
}

// afterwards is a testing.M that calls a function at its end.
type afterwards struct {
	m   *testing.M
	end func()
}

// Run runs the tests.
func (a afterwards) Run() int {
	defer a.end()
	return a.m.Run()
}

// build compiles a program of this repository, and returns its path.
func build(t *testing.T, folder, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Dir = filepath.Join("..", "..", "..", filepath.FromSlash(folder))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", folder, err, out)
	}
	return program
}

// screen is what a visitor has in front of him.
type screen struct {
	width, height int64
	scheme        string
}

func (s screen) String() string { return fmt.Sprintf("%d %s", s.width, s.scheme) }

// screens returns two screens which differ in everything, or all four with -all.
func screens() []screen {
	s := []screen{{1280, 900, "light"}, {400, 800, "dark"}}
	if *allScreens {
		s = append(s, screen{1280, 900, "dark"}, screen{400, 800, "light"})
	}
	return s
}

// tab is a tab of the browser with the page.
type tab struct {
	t        *testing.T
	ctx      context.Context
	problems []string // errors and warnings in the browser's console
}

// watchShifts notes by how much elements have moved by themselves. The bars of a lane move with the
// time, and do not count. Nor does what a slow browser paints before it has read the whole page.
const watchShifts = `window.shifts = [];
window.wholeSince = Infinity;
document.addEventListener("DOMContentLoaded", () => requestAnimationFrame(() => requestAnimationFrame(() => { wholeSince = performance.now(); })));
new PerformanceObserver(list => {
	for (const e of list.getEntries()) {
		if (e.startTime < wholeSince || e.hadRecentInput || e.sources.every(s => s.node?.closest?.("svg"))) continue;
		const at = r => " " + [r.width, r.height, r.x, r.y];
		shifts.push(e.value.toFixed(4) + " " + e.sources.map(s => s.node && (s.node.id || s.node.className || s.node.nodeName) + at(s.previousRect) + " to" + at(s.currentRect)).join("; "));
	}
}).observe({type: "layout-shift", buffered: true});`

// contrasts finds colours that are too much alike for WCAG AA, in what the script draws, which axe
// cannot see: texts and their backgrounds, and marks and the bars below them.
const contrasts = `(() => {
	const style = getComputedStyle(document.documentElement);
	const light = name => {
		const hex = style.getPropertyValue("--" + name).trim().slice(1), full = hex.length === 3 ? [...hex].map(c => c + c).join("") : hex;
		const [r, g, b] = [0, 2, 4].map(i => parseInt(full.slice(i, i + 2), 16) / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
	const pairs = [["card", "hold", 4.5], ["card", "pause", 4.5], ["ink", "card", 4.5], ["good", "card", 4.5], ["bad", "card", 4.5], ["soft", "back", 4.5], ["renew", "hold", 3]];
	return pairs.filter(([a, b, least]) => !(ratio(light(a), light(b)) >= least)).map(([a, b]) => a + " on " + b);
})()`

// open opens the URL in a tab. The end of the test fails if the browser has reported an error, or
// something has moved.
func open(t *testing.T, s screen, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	messages := chromedp.Console(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for m, err := range messages {
			if err == nil && (m.IsException() || m.Type == "error" || m.Type == "warning") {
				b.problems = append(b.problems, m.String()+" "+m.URL)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-watched
		for _, problem := range b.problems {
			t.Errorf("the browser reports: %s", problem)
		}
	})
	b.run(chromedp.EmulateViewport(s.width, s.height), chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		scheme := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: s.scheme}}
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: scheme})
		if err == nil { // several tabs are open, and each behaves as if it had the focus
			_, err = chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
		}
		if err == nil {
			_, err = chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watchShifts})
		}
		return err
	}), chromedp.Navigate(url))
	return b
}

// run performs actions in the tab.
func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of a script.
func eval[T any](b *tab, script string) T {
	b.t.Helper()
	return value(b, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// value returns the value of an action.
func value[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// do runs a script without a value.
func (b *tab) do(script string) {
	b.t.Helper()
	b.run(chromedp.Evaluate[chromedp.Void](script))
}

// text returns the text of the first element that the selector finds.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf(`(document.querySelector(%q) || {textContent: "(missing)"}).textContent`, selector))
}

// fact returns a figure of a card.
func (b *tab) fact(card, name string) string {
	b.t.Helper()
	return b.text(fmt.Sprintf("[data-card='%s'] [data-fact='%s']", card, name))
}

// await waits until the script is true.
func (b *tab) await(what, script string) {
	b.t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !eval[bool](b, script); time.Sleep(50 * time.Millisecond) { //nolint:forbidigo // between looks, until the deadline
		if time.Now().After(deadline) {
			b.t.Fatalf("after 90 s still not: %s\n%s", what, eval[string](b, "document.body.innerText"))
		}
	}
}

// click clicks as a mouse does. A button that is disabled or covered is not clicked.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.run(chromedp.Click(selector))
}

// check fails the test if axe finds a fault, if something has moved by itself, or if the page is
// wider than the screen.
func (b *tab) check() {
	b.t.Helper()
	b.do(axe)
	faults := eval[string](b, `axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r =>
		JSON.stringify(r.violations.map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary)])))`)
	if faults != "[]" {
		var pretty []any
		_ = json.Unmarshal([]byte(faults), &pretty) // for the message only
		text, _ := json.MarshalIndent(pretty, "", " ")
		b.t.Errorf("axe finds: %s", text)
	}
	if pale := eval[[]string](b, contrasts); len(pale) > 0 {
		b.t.Errorf("these colours of the lanes are too much alike: %q", pale)
	}
	if !eval[bool](b, "isFinite(wholeSince)") {
		b.t.Error("nothing has watched whether elements move")
	}
	if shifts := eval[[]string](b, "shifts"); len(shifts) > 0 {
		b.t.Errorf("elements have moved by themselves: %q", shifts)
	}
	if eval[bool](b, "document.documentElement.scrollWidth > innerWidth") {
		b.t.Errorf("the page is wider than the screen")
	}
}

// shot writes a screenshot for the documents, with -update.
func (b *tab) shot(name string, height int64) {
	b.t.Helper()
	if !*update {
		return
	}
	b.run(chromedp.EmulateViewport(1280, height), chromedp.Sleep(600*time.Millisecond))
	png := value(b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join("..", "..", "..", "docs", "pictures", name), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// snap writes a screenshot of the whole tab into the folder of $BROWSER_SHOTS, for whoever works on
// the page.
func (b *tab) snap() {
	folder := os.Getenv("BROWSER_SHOTS")
	if folder == "" {
		return
	}
	png := value(b, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(folder, strings.NewReplacer("/", "-", " ", "-").Replace(b.t.Name())+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
