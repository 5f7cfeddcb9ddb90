// Package page serves a live page of locks: latchctl web shows those of a server on it, and
// examples/scenes its scenes. The page needs no build step, loads nothing from elsewhere, and
// never receives the token of a lease.
package page

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed page.html app.js style.css
var assets embed.FS

// Config says what is on the page.
type Config struct {
	Title   string
	Lead    string        // a sentence below the title
	Window  time.Duration // how much of the past a lane shows
	Lanes   int           // how many lanes have a place on the page
	Keys    bool          // the page has a table of keys
	Scenes  []Choice      // what can be started
	Buttons []Choice      // what a visitor can do to the scene
	Hosts   []string      // names of this server besides localhost and addresses
}

// Step is the time between two lines of the grid of a lane.
func (c Config) Step() time.Duration {
	if c.Window > 2*time.Minute {
		return time.Minute
	}
	return 5 * time.Second
}

// Ticks are the words at the lines of the grid, the oldest first.
func (c Config) Ticks() (words []string) {
	for ago := c.Window; ago > 0; ago -= c.Step() {
		word := fmt.Sprintf("%.0f s", ago.Seconds())
		if c.Step() == time.Minute {
			word = fmt.Sprintf("%.0f min", ago.Minutes())
		}
		if words == nil {
			word += " ago"
		}
		words = append(words, word)
	}
	return words
}

// Choice is a button of the page. A click posts to the action of the same name. A scene has the
// legend of its lanes.
type Choice struct {
	Name, Title, Text string
	Legend            []Sign
}

// Sign says what the bars or marks of a Kind mean in a scene.
type Sign struct {
	Kind Kind
	Text string
}

// Lane names a lane. Its ID is the Lane of events. Its Rows are the participants, each with a row
// of its own; without Rows, all participants share one row.
type Lane struct {
	ID    string   `json:"id"`
	Title string   `json:"title"`
	Rows  []string `json:"rows,omitempty"`
}

// Card has figures of one thing, such as a mode of a scene.
type Card struct {
	Title   string `json:"title"`
	Facts   []Fact `json:"facts"`
	Verdict string `json:"verdict,omitempty"`
	Tone    string `json:"tone,omitempty"` // "good", "bad" or ""
	Code    string `json:"code,omitempty"` // the lines of the program that matter
	From    string `json:"from,omitempty"` // the files of Code
}

// Fact is a figure with its name.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Tone  string `json:"tone,omitempty"`
}

// Page collects what happens to locks, and shows it to each browser that has opened the page. Its
// methods may be called from any goroutine.
type Page struct {
	config Config
	mux    *http.ServeMux
	index  []byte

	mu sync.Mutex
	timeline
	values  map[string]value
	version int64
	viewers int
}

// value is a part of the page that is replaced as a whole.
type value struct {
	version int64
	json    json.RawMessage
}

// New returns a page.
func New(config Config) *Page {
	p := &Page{config: config, mux: http.NewServeMux(), values: map[string]value{}}
	p.open = map[bar]Event{}
	var index bytes.Buffer
	if err := template.Must(template.ParseFS(assets, "page.html")).Execute(&index, config); err != nil {
		panic(fmt.Sprintf("page: the embedded template: %v", err))
	}
	p.index = index.Bytes()
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(p.index) // the browser has gone if this fails
	})
	for _, name := range []string{"app.js", "style.css"} {
		p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, assets, name) })
	}
	p.mux.HandleFunc("GET /events", p.stream)
	return p
}

// Set replaces a part of the page: "lanes" by a []Lane, "cards" by a []Card, "note" by a text,
// "scene" by the name of the scene that runs, and "keys" by anything, after which the browser gets
// the table of keys anew.
func (p *Page) Set(name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("page: %s: %v", name, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !bytes.Equal(p.values[name].json, text) {
		p.version++
		p.values[name] = value{p.version, text}
	}
}

// Clear removes all events, before another scene begins.
func (p *Page) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// JSON makes GET path reply with what f returns.
func (p *Page) JSON(path string, f func(r *http.Request) (any, error)) {
	p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the browser has gone if this fails
	})
}

// Action makes the button of this name call f.
func (p *Page) Action(name string, f func() error) {
	p.mux.HandleFunc("POST /do/"+name, func(w http.ResponseWriter, _ *http.Request) {
		if err := f(); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// policy lets the page load only what this package embeds, and lets no other site embed the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP refuses requests that another site has made a browser send: a name that this server
// does not have (DNS rebinding), and an action from elsewhere.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.knows(r.Host) {
		http.Error(w, "this server is not named "+r.Host+"; open it by its address, or start it with --host", http.StatusMisdirectedRequest)
		return
	}
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// knows reports whether host, a header of a request, names this server. No DNS name of an attacker
// is an address, and browsers resolve localhost themselves.
func (p *Page) knows(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	_, err = netip.ParseAddr(name)
	return err == nil || strings.EqualFold(name, "localhost") ||
		slices.ContainsFunc(p.config.Hosts, func(known string) bool { return strings.EqualFold(name, known) })
}

// Serve serves the page at address until ctx ends. It calls opened with the URL of the page.
func (p *Page) Serve(ctx context.Context, address string, opened func(url string)) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the streams with ctx
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	opened("http://" + listener.Addr().String() + "/")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
