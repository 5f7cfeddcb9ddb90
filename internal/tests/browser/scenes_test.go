package browser

import (
	"database/sql"
	"fmt"
	"strconv"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

var modes = []string{"no lock", "SETNX + DEL", "latchkit"}

// theatre is flashsale with its page, and a look at its database.
type theatre struct {
	t   *testing.T
	url string
	db  *sql.DB
}

func openTheatre(t *testing.T) *theatre {
	t.Helper()
	file := t.TempDir() + "/shop.db"
	url := start(t, build(t, "examples/flashsale", "flashsale"), "-http", "127.0.0.1:0", "-dsn", file)
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &theatre{t, url, db}
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
func (th *theatre) agree(b *tab, name, query string, args func(mode string) []any) {
	th.t.Helper()
	for _, mode := range modes {
		before := th.number(query, args(mode)...)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // between looks, until the deadline
			page := b.fact(mode, name)
			after := th.number(query, args(mode)...)
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

func byMode(mode string) []any { return []any{mode} }

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

// scene clicks the button of a scene.
func (b *tab) scene(name string) {
	b.t.Helper()
	b.click("[data-scene=" + name + "]")
	b.await("the scene runs", fmt.Sprintf(`document.querySelector("[data-scene=%s]").getAttribute("aria-pressed") === "true"`, name))
	if story := b.text("#story"); len(story) < 100 {
		b.t.Errorf("the story of %s: %q", name, story)
	}
}

// Each scene and each button does on the page what it says, and the page says what the database
// says.
func TestEachSceneAndEachButton(t *testing.T) {
	t.Parallel()
	const results = "SELECT count(*) FROM flashsale_results WHERE mode = $1 AND result = "
	for _, s := range screens() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			th := openTheatre(t)
			b := open(t, s, th.url)

			b.scene("paused")
			b.above("latchkit", "writes accepted", 1)
			b.click("[data-do=pause]")
			for _, mode := range modes[1:] {
				b.logs("the holder is paused", "pause", mode, "is paused for 2.5s")
			}
			b.logs("the sleeper is refused", "refused", "latchkit", "is refused by the database: its fence")
			b.logs("the sleeper does harm", "harm", "SETNX + DEL", "overwrites version")
			b.above("latchkit", "refused by the fence", 0)
			b.above("SETNX + DEL", "writes lost", 0)
			if lost := b.fact("latchkit", "writes lost"); lost != "0" {
				t.Errorf("latchkit has lost %s writes", lost)
			}
			b.check()
			b.snap()
			if s == screens()[0] {
				b.shot("paused-holder.png", 1180)
			}
			th.agree(b, "writes accepted", results+"'written'", byMode)
			th.agree(b, "refused by the fence", results+"'refused'", byMode)
			th.agree(b, "version of the document", "SELECT version FROM flashsale_documents WHERE mode = $1", byMode)

			b.scene("killed")
			b.above("latchkit", "writes accepted", 0)
			b.click("[data-do=kill]")
			b.logs("the holder is killed", "kill", "latchkit", "was killed")
			b.await("the next one has the lock", `/^[0-9.]+ s$/.test(document.querySelector("[data-card='latchkit'] [data-fact='the next one had it after']").textContent)`)
			b.await("SETNX is stuck", `document.querySelector("[data-card='SETNX + DEL']").textContent.includes("Nobody can work")`)
			b.click("[data-do=flush]")
			b.logs("the locks are deleted", "lost", "SETNX + DEL", "Redis lost its data")
			before := th.number(results+"'written'", "SETNX + DEL")
			b.above("SETNX + DEL", "writes accepted", before) // without its lock, it goes on
			th.agree(b, "writes accepted", results+"'written'", byMode)
			b.check()

			b.scene("upload")
			b.await("the lease is renewed", `document.querySelector("[data-card='latchkit']") !== null`)
			b.above("SETNX + DEL", "writes lost", 0)
			b.above("latchkit", "writes accepted", 1)
			th.agree(b, "writes accepted", results+"'written'", byMode)
			b.click("[data-do=pause]")
			b.logs("the holder is paused", "pause", "latchkit", "is paused")
			b.check()

			b.scene("article")
			b.above("no lock", "half of each version", 0)
			b.above("latchkit", "articles read", 20)
			if torn := b.fact("latchkit", "half of each version"); torn != "0" {
				t.Errorf("with latchkit %s articles are torn", torn)
			}
			th.agree(b, "versions written", results+"'written'", byMode)
			b.check()

			b.scene("duplicate")
			b.above("no lock", "sent twice", 0)
			b.above("SETNX + DEL", "sent twice", 0)
			b.above("latchkit", "mails sent", 1)
			if twice := b.fact("latchkit", "sent twice"); twice != "0" {
				t.Errorf("with latchkit %s mails were sent twice", twice)
			}
			th.agree(b, "mails sent", results+"'sent'", byMode)
			b.check()

			b.scene("oversell")
			b.await("the sale is over", `document.querySelector("[data-card='latchkit'] .verdict").textContent === "Exactly the stock was sold."`)
			b.above("no lock", "oversold", 0)
			th.agree(b, "sold", "SELECT count(*) FROM flashsale_orders WHERE sku LIKE '%-' || $1", byMode)
			b.check()
			b.snap()
		})
	}
}
