package browser

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

var modes = []string{"no lock", "SETNX + DEL", "latchkit"}

// theatre is examples/scenes with its page, and a look at its database.
type theatre struct {
	t   *testing.T
	url string
	db  *sql.DB
}

func openTheatre(t *testing.T) *theatre {
	t.Helper()
	file := t.TempDir() + "/shop.db"
	th := &theatre{t: t}
	th.url = start(t, build(t, "examples/scenes", "scenes"), "-http", "127.0.0.1:0", "-dsn", file)
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	th.db = db
	return th
}

// number asks the database.
func (th *theatre) number(query string, args ...any) (n int) {
	th.t.Helper()
	if err := th.db.QueryRowContext(th.t.Context(), query, args...).Scan(&n); err != nil {
		th.t.Fatal(err)
	}
	return n
}

// agree waits until a figure of the page lies between what the database says before the look at the
// page and after it.
func (th *theatre) agree(b *tab, name, query string) {
	th.t.Helper()
	for _, mode := range modes {
		before := th.number(query, mode)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // between looks, until the deadline
			page := b.fact(mode, name)
			after := th.number(query, mode)
			if n, err := strconv.Atoi(page); err == nil && before <= n && n <= after {
				break
			}
			if time.Now().After(deadline) {
				th.t.Errorf("%s, %s: the page says %s, and the database %d to %d", mode, name, page, before, after)
				break
			}
		}
	}
}

// logs waits for a line in the log of what happened.
func (b *tab) logs(what, kind, mode, text string) {
	b.t.Helper()
	b.await(what, fmt.Sprintf(`[...document.querySelectorAll("#log [data-kind=%s]")].some(l => l.textContent.includes(%q) && l.textContent.includes(%q))`, kind, mode+": ", text))
}

// above waits until a figure of the page is above n.
func (b *tab) above(mode, name string, n int) {
	b.t.Helper()
	b.await(fmt.Sprintf("%s, %s > %d", mode, name, n), fmt.Sprintf(`+document.querySelector("[data-card='%s'] [data-fact='%s']")?.textContent > %d`, mode, name, n))
}

// scene clicks the button of a scene. Its participants have their rows at once, and each mode has
// its code.
func (b *tab) scene(name string, rows ...string) {
	b.t.Helper()
	b.click("[data-scene=" + name + "]")
	b.await("the scene runs", fmt.Sprintf(`document.querySelector("[data-scene=%s]").getAttribute("aria-pressed") === "true"`, name))
	if story := b.text("#story"); len(story) < 100 {
		b.t.Errorf("the story of %s: %q", name, story)
	}
	b.await("each lane has a row for "+strings.Join(rows, ", "), fmt.Sprintf(
		`[...document.querySelectorAll(".lane")].every(l => [...l.querySelectorAll(".names li")].map(n => n.textContent).join() === %q)`, strings.Join(rows, ",")))
	b.await("only the legend of the scene is shown", fmt.Sprintf(`[...document.querySelectorAll("[data-legend]:not([hidden])")].map(l => l.dataset.legend).join() === %q`, name))
	b.await("no text of the figures, the code or the legend is cut off", `[...document.querySelectorAll(".card *, .legend, .legend li, #story")].every(e => e.scrollWidth <= e.clientWidth + 1 || !e.clientWidth)`)
	b.await("each mode has its code", `[...document.querySelectorAll("#codes pre")].filter(c => c.textContent).length === 3`)
}

// breakIt clicks a button, and waits until it has hit the two modes with a lock. On a busy machine
// a click may find no holder in one of them, as a visitor's click may: then it clicks again.
func (b *tab) breakIt(button string) {
	b.t.Helper()
	kind, text := map[string]string{"pause": "pause", "kill": "kill", "flush": "lost"}[button], map[string]string{"pause": "is paused for 2.5s", "kill": "was killed", "flush": "Redis lost its data"}[button]
	hits := fmt.Sprintf(`%q.split(",").every(mode => [...document.querySelectorAll("#log [data-kind=%s]")].some(l => l.textContent.includes(mode + ": ") && l.textContent.includes(%q)))`,
		strings.Join(modes[1:], ","), kind, text)
	for range 3 {
		b.click("[data-do=" + button + "]")
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { //nolint:forbidigo // between looks, until the deadline
			if eval[bool](b, hits) {
				return
			}
		}
	}
	b.t.Fatalf("after three clicks on %s, no holder is hit:\n%s", button, b.text("#log"))
}

// zero checks that a figure of latchkit is 0.
func (b *tab) zero(name string) {
	b.t.Helper()
	if n := b.fact("latchkit", name); n != "0" {
		b.t.Errorf("latchkit, %s: %s, want 0", name, n)
	}
}

const results = "SELECT count(*) FROM scenes_results WHERE mode = $1 AND result = "

// Each scene and each button does on the page what it says, and the page says what the database
// says.
func TestEachSceneAndEachButton(t *testing.T) {
	t.Parallel()
	for _, s := range screens {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			th := openTheatre(t)
			b := open(t, s, th.url)
			th.paused(b, s)
			th.killed(b)
			th.upload(b)
			th.article(b)
			th.duplicate(b)
			th.oversell(b)
		})
	}
}

func (th *theatre) paused(b *tab, s screen) {
	b.scene("paused", "Ann", "Bob")
	b.above("latchkit", "writes accepted", 1)
	b.breakIt("pause")
	b.logs("the sleeper is refused", "refused", "latchkit", "is refused by the database: its fence +")
	b.logs("the sleeper does harm", "harm", "SETNX + DEL", "overwrites version")
	b.above("latchkit", "refused by the fence", 0)
	b.above("SETNX + DEL", "writes lost", 0)
	b.zero("writes lost")
	b.check()
	if s == screens[0] {
		b.shot("paused-holder.png", 1100)
	}
	th.agree(b, "writes accepted", results+"'written'")
	th.agree(b, "refused by the fence", results+"'refused'")
	th.agree(b, "version of the document", "SELECT version FROM scenes_documents WHERE mode = $1")

	// Fences are short, and in the titles they have all their digits.
	b.await("the lane has a short fence", `(m => /fence \+[\d,]+$/.test(m.textContent) && /^fence \d{16}: the first one of this lane was \d{16}$/.test(m.title))(document.querySelector(".lane:last-child .who span:last-child"))`)
	b.await("the log has the long fences", `/fence \d{16} is smaller than \d{16}/.test(document.querySelector("#log [data-kind=refused]").title)`)

	b.breakIt("kill")
	b.breakIt("flush")
	b.zero("writes lost")
	th.agree(b, "writes accepted", results+"'written'")

	b.do(`document.querySelector("#lane").value = "latchkit"; document.querySelector("#lane").dispatchEvent(new Event("change"))`)
	b.await("the log has one lane", `(lines => lines.length > 0 && lines.every(l => l.textContent.includes("latchkit: ")))([...document.querySelectorAll("#log li:not([hidden])")])`)
	b.check()
	b.do(`document.querySelector("#lane").value = ""; document.querySelector("#lane").dispatchEvent(new Event("change"))`)
	b.await("the log has all lanes", `document.querySelectorAll("#log li[hidden]").length === 0`)

	run := func() (name string) {
		if err := th.db.QueryRowContext(th.t.Context(), "SELECT coalesce(max(run), '') FROM scenes_documents").Scan(&name); err != nil {
			th.t.Fatal(err)
		}
		return name
	}
	before := run()
	b.click("[data-do=again]")
	b.await("the log is empty", `document.querySelector("#log [data-kind=refused]") === null`)
	b.await("the figures begin anew", `document.querySelector("[data-card='latchkit'] [data-fact='refused by the fence']").textContent === "0"`)
	if after := run(); after == before {
		th.t.Errorf("after Start again, the database has still the run %s", after)
	}
	b.above("latchkit", "writes accepted", 0)
	th.agree(b, "writes accepted", results+"'written'")
}

func (th *theatre) killed(b *tab) {
	b.scene("killed", "Ann", "Bob")
	b.above("latchkit", "writes accepted", 0)
	b.breakIt("pause")
	b.logs("the sleeper wakes", "resume", "SETNX + DEL", "runs again")
	b.breakIt("kill")
	b.await("the next one has the lock", `/^[0-9.]+ s$/.test(document.querySelector("[data-card='latchkit'] [data-fact='the next one had it after']").textContent)`)
	b.await("SETNX is stuck", `document.querySelector("[data-card='SETNX + DEL']").textContent.includes("Nobody can work")`)
	b.breakIt("flush")
	before := th.number(results+"'written'", "SETNX + DEL")
	b.above("SETNX + DEL", "writes accepted", before) // without its lock, it goes on
	th.agree(b, "writes accepted", results+"'written'")
	b.zero("writes lost")
	b.check()
}

func (th *theatre) upload(b *tab) {
	b.scene("upload", "Ann", "Bob")
	b.above("SETNX + DEL", "writes lost", 0)
	b.above("latchkit", "writes accepted", 1)
	b.breakIt("pause")
	b.breakIt("kill")
	b.breakIt("flush")
	th.agree(b, "writes accepted", results+"'written'")
	b.zero("writes lost")
	b.check()
}

func (th *theatre) article(b *tab) {
	b.scene("article", "editor", "reader 1", "reader 2", "reader 3", "reader 4")
	b.above("no lock", "half of each version", 0)
	b.above("latchkit", "articles read", 20)
	b.breakIt("pause")
	b.breakIt("kill")
	b.breakIt("flush")
	read := th.number(results+"'read'", "latchkit")
	b.above("latchkit", "articles read", read+20)
	b.zero("half of each version")
	th.agree(b, "articles read", results+"'read'")
	th.agree(b, "half of each version", results+"'torn'")
	th.agree(b, "versions written", results+"'written'")
	b.check()
}

func (th *theatre) duplicate(b *tab) {
	b.scene("duplicate", "worker A", "worker B")
	b.above("no lock", "sent twice", 0)
	b.above("SETNX + DEL", "sent twice", 0)
	b.above("latchkit", "mails sent", 1)
	b.breakIt("pause")
	b.breakIt("kill")
	sent := th.number(results+"'sent'", "latchkit")
	b.above("latchkit", "mails sent", sent)
	b.zero("sent twice")
	th.agree(b, "mails sent", results+"'sent'")
	b.breakIt("flush")
	sent = th.number(results+"'sent'", "latchkit")
	b.above("latchkit", "mails sent", sent)
	th.agree(b, "mails sent", results+"'sent'")
	th.agree(b, "invoices", "SELECT count(DISTINCT item) FROM scenes_results WHERE mode = $1 AND result = 'sent'")
	b.check()
}

func (th *theatre) oversell(b *tab) {
	b.scene("oversell", "shop 1", "shop 2", "shop 3")
	b.above("latchkit", "sold", 0)
	b.breakIt("pause")
	b.breakIt("kill")
	b.breakIt("flush")
	b.await("the sale is over", `document.querySelector("[data-card='latchkit'] .verdict").textContent === "Exactly the stock was sold."`)
	b.above("no lock", "oversold", 0)
	th.agree(b, "sold", "SELECT count(*) FROM scenes_orders WHERE sku LIKE '%-' || $1")
	b.check()
}
