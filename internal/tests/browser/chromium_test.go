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
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/latchkit/latchkit/internal/redistest"
)

var update = flag.Bool("update", false, "write the screenshots of the documents anew")

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

// screens are two screens which differ in everything.
var screens = []screen{{1280, 900, "light"}, {400, 800, "dark"}}

// tab is a tab of the browser with the page.
type tab struct {
	t        *testing.T
	ctx      context.Context
	problems []string // errors and warnings in the browser's console
}

// open opens the URL in a tab, and fails the test at its end if the browser has reported an error.
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

// check fails the test if axe finds a fault, or if the page is wider than the screen.
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
