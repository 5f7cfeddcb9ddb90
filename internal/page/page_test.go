package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// ask sends a request to p.
func ask(p *Page, method, path, host string, header map[string]string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	for name, v := range header {
		r.Header.Set(name, v)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// A site of an attacker can make its own name resolve to this machine. Its name is in the Host of
// each request of the browser, and the page refuses it, whatever is asked for.
func TestANameThatIsNotOfThisServerIsRefused(t *testing.T) {
	t.Parallel()
	p := New(Config{Title: "t", Hosts: []string{"Locks.example"}})
	for host, want := range map[string]int{
		"127.0.0.1:8080": 200, "localhost:8080": 200, "[::1]:8080": 200, "LOCALHOST": 200, "10.1.2.3": 200, "locks.example:443": 200,
		"evil.example:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example:8080": 421, "": 421,
	} {
		for _, path := range []string{"/", "/app.js"} {
			if got := ask(p, "GET", path, host, nil).Code; got != want {
				t.Errorf("GET %s of host %q: %d, want %d", path, host, got, want)
			}
		}
	}
}

func TestAnActionOfAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	p := New(Config{Title: "t"})
	calls := 0
	p.Action("kill", func() error { calls++; return nil })
	p.Action("fail", func() error { return errors.New("nobody holds the key") })
	for _, test := range []struct {
		header map[string]string
		method string
		want   int
	}{
		{map[string]string{"Sec-Fetch-Site": "same-origin"}, "POST", 204},
		{map[string]string{"Origin": "http://127.0.0.1:1"}, "POST", 204},
		{map[string]string{"Sec-Fetch-Site": "cross-site"}, "POST", 403},
		{map[string]string{"Origin": "http://evil.example"}, "POST", 403},
		{nil, "GET", 405},
	} {
		if got := ask(p, test.method, "/do/kill", "127.0.0.1:1", test.header).Code; got != test.want {
			t.Errorf("%s with %v: %d, want %d", test.method, test.header, got, test.want)
		}
	}
	if calls != 2 {
		t.Errorf("the action ran %d times, want 2", calls)
	}
	if w := ask(p, "POST", "/do/fail", "127.0.0.1:1", nil); w.Code != 409 || !strings.Contains(w.Body.String(), "nobody holds the key") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	w := ask(New(Config{Title: "a <b> title", Keys: true, Scenes: []Choice{{Name: "s", Title: "S", Text: "text"}}}), "GET", "/", "localhost", nil)
	if got := w.Header().Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
		t.Errorf("policy %q", got)
	}
	body := w.Body.String()
	for _, bad := range []string{"http:", "https:", "<style", "style=", "onclick", "<b> title"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if strings.Count(body, "<script") != 1 || !strings.Contains(body, `<script src="app.js" defer></script>`) {
		t.Error("the page has scripts besides app.js")
	}
}

// A thousand events a second are more than a browser draws. The timeline drops bars, says how many,
// and leaves no bar open for ever.
func TestAThousandEventsASecondAreSampledAndCounted(t *testing.T) {
	t.Parallel()
	p := New(Config{Title: "t"})
	at := time.Unix(1000, 0)
	for i := range 1000 {
		now := at.Add(time.Duration(i) * time.Millisecond)
		who := fmt.Sprint("caller ", i/3)
		p.add(Event{Lane: "a", Who: who, Kind: []Kind{Wait, Hold, Free}[i%3]}, now)
	}
	p.add(Event{Lane: "a", Who: "late", Kind: Refused}, at.Add(999*time.Millisecond))
	c := cursor{epoch: -1}
	f, fresh := p.next(&c, at.Add(time.Second))
	if !fresh || f.Seen != 1001 || f.Left == 0 || int64(len(f.Events)) != f.Seen-f.Left {
		t.Fatalf("seen %d, not drawn %d, sent %d", f.Seen, f.Left, len(f.Events))
	}
	open := map[string]bool{}
	for _, e := range f.Events {
		if open[e.Who] = e.Kind == Wait || e.Kind == Hold; e.Kind == Refused {
			delete(open, e.Who)
		}
	}
	for who, still := range open {
		if still && who != "caller 333" {
			t.Errorf("the bar of %s has no end", who)
		}
	}
	if last := f.Events[len(f.Events)-1]; last.Kind != Refused {
		t.Errorf("the last event is %v; a refusal by the fence must be drawn", last)
	}
	if f, fresh := p.next(&c, at.Add(3*time.Second)); !fresh || f.Left != 0 || len(f.Events) != 0 {
		t.Errorf("later: %+v", f)
	}
}

// Whoever opens the page later sees the bars that began before the oldest event in memory.
func TestALateViewerSeesWhatIsStillHeld(t *testing.T) {
	t.Parallel()
	p := New(Config{Title: "t"})
	at := time.Unix(1000, 0)
	p.add(Event{Lane: "old", Who: "holder", Kind: Hold, Fence: 1<<60 + 1}, at)
	for i := range 5 * history {
		p.add(Event{Lane: "busy", Who: "x", Kind: []Kind{Hold, Free}[i%2]}, at.Add(time.Duration(i)*20*time.Millisecond))
	}
	f, _ := p.next(&cursor{epoch: -1}, at.Add(time.Hour))
	text, err := json.Marshal(f.Events[0])
	if err != nil {
		t.Fatal(err)
	}
	if f.Events[0].Lane != "old" || !strings.Contains(string(text), `"fence":"1152921504606846977"`) {
		t.Errorf("the first event is %s", text)
	}
	if len(f.Events) > 2*history+1 {
		t.Errorf("%d events are kept", len(f.Events))
	}
	p.Clear()
	c := cursor{epoch: f.Epoch, seq: 17}
	if f, fresh := p.next(&c, at.Add(time.Hour)); len(f.Events) > 0 || f.Epoch == 0 || !fresh {
		t.Errorf("after Clear: %+v", f)
	}
}

func TestTheStreamSendsWhatChanges(t *testing.T) {
	t.Parallel()
	p := New(Config{Title: "t"})
	p.JSON("/keys", func(*http.Request) (any, error) { return map[string]int{"total": 3}, nil })
	p.Set("note", "hello")
	ctx, cancel := context.WithCancel(t.Context())
	opened, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- p.Serve(ctx, "127.0.0.1:0", func(url string) { opened <- url }) }()
	url := <-opened
	resp, err := http.Get(url + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	frames := bufio.NewScanner(resp.Body)
	next := func() (f frame) {
		for frames.Scan() {
			if text, ok := strings.CutPrefix(frames.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &f); err != nil {
					t.Fatal(err)
				}
				return f
			}
		}
		t.Fatal("the stream has ended")
		return f
	}
	if f := next(); string(f.Values["note"]) != `"hello"` {
		t.Errorf("first: %+v", f)
	}
	p.Set("note", "hello") // is no change
	p.Add(Event{Lane: "a", Who: "b", Kind: Hold})
	for f := next(); len(f.Events) == 0; f = next() {
		if len(f.Values) > 0 {
			t.Errorf("sent again: %+v", f)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
