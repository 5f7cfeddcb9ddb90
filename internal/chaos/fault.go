package chaos

import (
	"math"
	"sync"
	"testing"
	"time"
)

// Every is the n of a fault that strikes until it is lifted.
const Every = math.MaxInt

// patience bounds the wait for a fault to strike; only a failing test spends it.
const patience = 30 * time.Second

// Fault is something that a [Proxy] does to the traffic. Its methods may be
// called from any goroutine, except Await, which may end the test.
type Fault struct {
	kind  kind
	match Match

	mu     sync.Mutex
	left   int           // requests it may still pick
	hits   int           // how often it struck
	struck chan struct{} // closed at the next hit
	lifted chan struct{} // closed at the end
}

type kind int

const (
	losing     kind = iota // close the connection instead of passing the reply on
	swallowing             // pass the reply on to nobody
	holding                // keep the request
	blackhole              // keep everything
)

func newFault(kind kind, n int, match Match) *Fault {
	return &Fault{kind: kind, match: match, left: n, struck: make(chan struct{}), lifted: make(chan struct{})}
}

// Hits is how often the fault has struck.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Await returns when the fault has struck n times. It ends the test when that
// does not come to pass.
func (f *Fault) Await(t testing.TB, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		hits, struck := f.hits, f.struck
		f.mu.Unlock()
		if hits >= n {
			return
		}
		select {
		case <-struck:
		case <-deadline:
			t.Fatalf("the fault struck %d times within %v, want %d", hits, patience, n)
		}
	}
}

// Lift ends the fault: it strikes no more, and what it kept goes on its way.
func (f *Fault) Lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over() {
		close(f.lifted)
	}
}

// pick says whether the fault is about this request, which then counts.
func (f *Fault) pick(request message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() || f.left == 0 || !f.match(request) {
		return false
	}
	if f.left != Every {
		f.left--
	}
	return true
}

// strike counts a hit. It is refused when the fault was lifted in the meantime.
func (f *Fault) strike() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over() {
		return false
	}
	f.hits++
	close(f.struck)
	f.struck = make(chan struct{})
	return true
}

func (f *Fault) over() bool {
	select {
	case <-f.lifted:
		return true
	default:
		return false
	}
}
