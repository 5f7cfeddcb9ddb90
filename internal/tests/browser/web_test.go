package browser

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// start starts a program that prints the URL of its page in its first line with http://, and
// returns the URL.
func start(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if at := strings.Index(lines.Text(), "http://"); at >= 0 {
			go func() {
				for lines.Scan() { // so that the program is never left with a full pipe
				}
			}()
			return strings.TrimSpace(lines.Text()[at:])
		}
	}
	t.Fatalf("%s printed no URL", program)
	return ""
}

// hold makes a system with locks: a busy key with waiters in a known order, keys that are handed on
// and renewed, and keys that are only held.
func hold(t *testing.T, server *redistest.Server) (busy *locker.Lease) {
	t.Helper()
	busy = locktest.Acquire(t, locktest.Single(t, server.Client(t)), locker.Rule{Key: "report:nightly", Metadata: "report-7f9c (pid 4711)", TTL: 20 * time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	var waiters []chan struct{}
	wait := func(key, who string) {
		ended := make(chan struct{})
		l := locktest.Single(t, server.Client(t))
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				if lease, err := l.Acquire(ctx, locker.Rule{Key: key, Metadata: who}); err == nil {
					time.Sleep(400 * time.Millisecond) //nolint:forbidigo // the work under the lock
					_ = lease.Release(context.Background())
				}
			}
		}()
		waiters = append(waiters, ended)
	}
	probe := locktest.Single(t, server.Client(t))
	for i := range 5 {
		wait("report:nightly", fmt.Sprintf("report-%d", i+1))
		locktest.Eventually(t, "the waiter is in the queue", func() bool {
			info, err := probe.Inspect(t.Context(), "report:nightly")
			return err == nil && info.Waiters == i+1
		})
	}
	for i := range 3 {
		wait("order:42", fmt.Sprintf("checkout-%d", i+1))
	}
	for i := range 30 {
		locktest.Acquire(t, probe, locker.Rule{Key: fmt.Sprintf("import:%02d", i), Metadata: fmt.Sprintf("importer-%d", i%4), TTL: 10 * time.Second})
	}
	t.Cleanup(func() {
		cancel()
		for _, ended := range waiters {
			<-ended
		}
	})
	return busy
}

// latchctl web says what the server says, on each screen.
func TestLatchctlWebShowsWhatTheServerSays(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	busy := hold(t, server)
	url := start(t, build(t, "cmd/latchctl", "latchctl"), "web", "--listen", "127.0.0.1:0", "--node", "redis://"+server.Addr())
	for _, s := range screens {
		t.Run(s.String(), func(t *testing.T) { // one after the other, because the tabs share what the page stores
			b := open(t, s, url)
			b.await("the busiest key is the first row", `(document.querySelector("#keys button") || {}).textContent === "report:nightly"`)
			if got := b.text("#keys tr td:nth-child(2)"); got != "5" {
				t.Errorf("%s waiters, want 5", got)
			}
			if got := b.text("#keys tr td:nth-child(6)"); got != fmt.Sprint(busy.Fence()) {
				t.Errorf("fence %s, want %d", got, busy.Fence())
			}
			b.await("the lane says who holds the key", `[...document.querySelectorAll(".lane")].some(l => l.textContent.includes("report:nightly") &&
				l.textContent.includes("report-7f9c (pid 4711) holds it") && l.textContent.includes("5 wait"))`)
			b.await("the figures are those of the server", `document.querySelector("[data-card='Now'] [data-fact='held']").textContent === "32"`)
			if light := eval[bool](b, `getComputedStyle(document.body).backgroundColor === "rgb(246, 247, 249)"`); light != (s.scheme == "light") {
				t.Errorf("the page is light: %v", light)
			}

			if cut := eval[string](b, `[...document.querySelectorAll("#keys td, .scroll th, .lane .who span")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent + " " + e.scrollWidth + ">" + e.clientWidth).join("; ")`); cut != "" {
				t.Errorf("cut off: %s", cut)
			}
			b.click("#keys tr:first-child button")
			b.await("the detail has the queue", `document.querySelectorAll("#detail li").length === 5`)
			b.await("the order is that of the queue", `[...document.querySelectorAll("#detail li")].every((l, i) => l.textContent.startsWith("report-" + (i + 1) + ": waits"))`)
			if got, want := b.text("#detail pre"), fmt.Sprintf("latchctl break --fence %d --reason 'say why' 'report:nightly'", busy.Fence()); got != want {
				t.Errorf("the line to copy is %s, want %s", got, want)
			}
			b.await("who waits for whom", `document.querySelector("#waits").textContent.includes("5 wait for report-7f9c (pid 4711) (report:nightly)")`)
			b.await("hand-offs are in the log", `document.querySelector("#log [data-kind=handoff]") !== null`)
			b.check()
			if s == screens[0] {
				var history time.Duration
				if *update {
					history = 25 * time.Second // so that the picture shows some
				}
				b.run(chromedp.Evaluate[chromedp.Void]("scrollTo(0, 0)"), chromedp.Sleep(history))
				b.shot("latchctl-web.png", 1340)
			}

			// By the keyboard alone: find, theme, freeze.
			b.run(chromedp.KeyEvent("/"))
			b.await("the search has the focus", `document.activeElement.id === "find"`)
			b.do(`document.querySelector("#find").value = ""`) // the protocol types the slash in spite of preventDefault
			b.run(chromedp.KeyEvent("Import:07"))
			b.await("one row is found", `document.querySelectorAll("#keys tr").length === 1 && document.querySelector("#keys button").textContent === "import:07"`)
			b.run(chromedp.Evaluate[chromedp.Void](`document.querySelector("#find").value = ""; document.querySelector("#find").dispatchEvent(new Event("input")); document.activeElement.blur()`))
			b.run(chromedp.SetValue("#sort", "key"), chromedp.Evaluate[chromedp.Void](`document.querySelector("#sort").dispatchEvent(new Event("change"))`))
			b.await("sorted by key", `document.querySelector("#keys button").textContent === "import:00"`)
			b.run(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`), chromedp.KeyEvent("t"))
			if got, want := eval[string](b, "document.documentElement.dataset.theme"), map[string]string{"light": "dark", "dark": "light"}[s.scheme]; got != want {
				t.Errorf("after the key t the theme is %s, want %s", got, want)
			}
			b.check()
			b.run(chromedp.KeyEvent("p"))
			b.await("frozen", `document.querySelector("#live").textContent === "frozen" && document.querySelector("#freeze").getAttribute("aria-pressed") === "true"`)
			b.run(chromedp.KeyEvent("p"), chromedp.Evaluate[chromedp.Void]("localStorage.clear()"))
			b.check()
		})
	}
}
