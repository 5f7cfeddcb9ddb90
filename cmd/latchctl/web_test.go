package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// webPage is a running latchctl web.
type webPage struct {
	t   *testing.T
	url string
}

// openWeb starts latchctl web.
func openWeb(t *testing.T, nodes []string, args ...string) *webPage {
	t.Helper()
	cmd := latchctl(t, nodes, append([]string{"web", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return &webPage{t, strings.TrimSpace(line)}
}

// get returns the reply to GET path.
func (p *webPage) get(path string) string {
	p.t.Helper()
	resp, err := http.Get(p.url + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// rows returns the rows of the table, and how many keys there are.
func (p *webPage) rows(query string) (rows []row, total int) {
	p.t.Helper()
	var found struct {
		Total int
		Rows  []row
	}
	if err := json.Unmarshal([]byte(p.get("keys?"+query)), &found); err != nil {
		p.t.Fatal(err)
	}
	return found.Rows, found.Total
}

// key returns what the page shows of a chosen key.
func (p *webPage) key(name string) (d detail, text string) {
	p.t.Helper()
	text = p.get("key?name=" + url.QueryEscape(name))
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		p.t.Fatalf("%v: %s", err, text)
	}
	return d, text
}

// stream reads the page's events until each of the patterns is in them, and returns them.
func (p *webPage) stream(patterns ...string) string {
	p.t.Helper()
	resp, err := http.Get(p.url + "events")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	late := time.AfterFunc(20*time.Second, func() { _ = resp.Body.Close() })
	defer late.Stop()
	var all strings.Builder
	frames := bufio.NewScanner(resp.Body)
	frames.Buffer(nil, 4<<20)
	for frames.Scan() {
		all.WriteString(frames.Text() + "\n")
		missing := false
		for _, pattern := range patterns {
			missing = missing || !regexp.MustCompile(pattern).MatchString(all.String())
		}
		if !missing {
			return all.String()
		}
	}
	p.t.Errorf("the stream lacks one of %q:\n%s", patterns, all.String())
	return all.String()
}

// streamed returns what the stream of the page shows of a key that is held and waited for, for more
// than a second where the server knows since when.
func (s site) streamed() []string {
	if s.waiters() == 0 {
		return []string{`"kind":"hold"`}
	}
	return []string{`"kind":"hold"`, `"kind":"queue"`, `"n":1`, `"name":"longest wait","value":"[1-9]`}
}

// On each kind of server, the page shows the holder, the waiter, and a line that breaks the lock.
// It shows no token, and it writes nothing.
func TestWebShowsTheLocksOfEveryKindOfServerAndNoToken(t *testing.T) {
	t.Parallel()
	for name, s := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "order:it's " + name
			lease := s.lockedAndWaitedFor(t, key)
			tokens := s.tokens(t, key)
			p := openWeb(t, s.nodes, "--every", "100ms")
			locktest.Eventually(t, "the table has the key", func() bool {
				rows, _ := p.rows("sort=waiters")
				return slices.ContainsFunc(rows, func(r row) bool {
					return r.Key == key && r.Waiters == s.waiters() && r.Fence == fmt.Sprint(lease.Fence()) && r.Holder == `holder \x1b[31m7\u009b`
				})
			})
			d, text := p.key(key)
			want := fmt.Sprintf(`latchctl break --fence %d --reason 'say why' 'order:it'\''s %s'`, lease.Fence(), name)
			if d.Break != want || len(d.Queue) != s.waiters() || len(d.Queue) == 1 && !strings.Contains(d.Queue[0], "waits") {
				t.Errorf("%+v; want the line %s", d, want)
			}
			all := p.get("") + text + p.get("keys") + p.stream(s.streamed()...)
			checkNoSecrets(t, "web", all, tokens)

			// The line does what it says.
			line := strings.Replace(d.Break, "latchctl", "", 1) + " --yes"
			args, err := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s\n' `+line).Output()
			if err != nil {
				t.Fatal(err)
			}
			exits(t, 0, s.nodes, strings.Split(strings.TrimSpace(string(args)), "\n")...)
		})
	}
}

func TestWebShowsNoKeyOutsideItsPattern(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := locktest.Single(t, server.Client(t))
	for _, key := range []string{"order:1", "order:2", "salary:7"} {
		locktest.Acquire(t, l, locker.Rule{Key: key, Metadata: "of " + key})
	}
	p := openWeb(t, []string{"redis://" + server.Addr()}, "order:*", "--every", "100ms")
	locktest.Eventually(t, "both orders are there", func() bool { _, n := p.rows(""); return n == 2 })
	if rows, n := p.rows("find=ORDER:2"); n != 1 || rows[0].Key != "order:2" {
		t.Errorf("found %+v", rows)
	}
	if _, text := p.key("salary:7"); strings.Contains(text, "of salary") {
		t.Errorf("shown although it does not match: %s", text)
	}
	if all := p.stream(`"kind":"hold"`); strings.Contains(all, "salary") {
		t.Error("the stream has a key that does not match the pattern")
	}
}

// latchctl web answers to no name but its own, whatever a browser was made to believe.
func TestWebRefusesDNSRebinding(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := openWeb(t, []string{"redis://" + server.Addr()}, "--host", "locks.internal")
	for host, want := range map[string]int{"evil.example": http.StatusMisdirectedRequest, "locks.internal": 200, "localhost:1": 200} {
		for _, path := range []string{"", "keys", "key?name=a"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("GET /%s of host %s: %s, want %d", path, host, resp.Status, want)
			}
		}
	}
}

// While the server is down, the page shows what was before, and says so.
func TestWebShowsTheLastLookWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	locktest.Acquire(t, locktest.Single(t, server.Client(t)), locker.Rule{Key: "order:1"})
	p := openWeb(t, []string{"redis://" + server.Addr()}, "--every", "100ms", "--timeout", "2s")
	locktest.Eventually(t, "the key is there", func() bool { _, n := p.rows(""); return n == 1 })
	server.Kill()
	p.stream("the servers do not answer")
	if _, n := p.rows(""); n != 1 {
		t.Error("the key of the last look is gone")
	}
	server.Restart()
	p.stream(`"note":""`)
}

// The server gets no more commands than --rate, and nothing that writes.
func TestWebCostsTheServerNoMoreThanItsRate(t *testing.T) {
	t.Parallel()
	const rate = 100
	server := redistest.Start(t)
	client := server.Client(t)
	l := locktest.Single(t, client)
	for i := range 300 {
		locktest.Acquire(t, l, locker.Rule{Key: fmt.Sprint("order:", i), TTL: 10 * time.Minute}) // is not renewed in this test
	}
	p := openWeb(t, []string{"redis://" + server.Addr()}, "--every", "100ms", "--rate", fmt.Sprint(rate))
	locktest.Eventually(t, "some keys are there", func() bool { _, n := p.rows(""); return n > 20 })
	at := time.Now()
	before := commandsOf(t, client)
	for i := 0; i < 20 || time.Since(at) < 2*time.Second; i++ {
		p.rows("sort=age")
		p.key("order:1")
	}
	after, took := commandsOf(t, client), time.Since(at).Seconds()
	writes, n := 0.0, 0.0
	for name, calls := range after {
		calls -= before[name]
		switch name {
		case "info": // of this test
		case "set", "del", "pexpire", "zadd", "zrem", "hset", "publish", "xadd":
			writes += calls
		case "evalsha", "eval", "evalsha_ro", "eval_ro", "fcall", "fcall_ro":
			n += calls
		}
	}
	if most := rate*took + 32; n > most || n < 20 || writes > 0 {
		t.Errorf("%.0f looks in %.1f s, want at most %.0f; %.0f writes, want none", n, took, most, writes)
	}
}

// commandsOf returns how often the server has run each command.
func commandsOf(t *testing.T, c *redis.Client) map[string]float64 {
	t.Helper()
	text, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		var calls float64
		if _, err := fmt.Sscanf(rest, "%f,", &calls); err != nil {
			t.Fatal(err)
		}
		all[name] = calls
	}
	return all
}

// A key for which nobody waits gives its lane to a key with waiters, and the other lanes stay.
func TestAnIdleLaneYieldsToAKeyWithWaiters(t *testing.T) {
	t.Parallel()
	w := &web{page: page.New(page.Config{Lanes: webLanes}), locks: map[string]lock{}}
	hold := func(key string, age time.Duration, waiters int) {
		w.locks[key] = lock{key: key, age: age, Info: locker.Info{Held: true, Waiters: waiters}}
	}
	for i := range webLanes + 2 {
		hold(fmt.Sprint("import:", i), time.Hour-time.Duration(i)*time.Minute, 0)
	}
	before := slices.Clone(w.busiest())
	hold("order:40", time.Second, 3)
	after := w.busiest()
	if !slices.Contains(after, "order:40") || len(after) != webLanes || !slices.Equal(after[:webLanes-1], before[:webLanes-1]) {
		t.Errorf("the lanes were %v, and are %v when order:40 has waiters", before, after)
	}
}
