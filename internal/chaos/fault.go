package chaos

import (
	"math"
	"sync"
	"testing"
	"time"
)

// Every is a number of requests. A fault with this number hits each matching request until the
// fault is lifted.
const Every = math.MaxInt

// patience is the longest wait for a hit of a fault. Only a failing test waits for that long.
const patience = 30 * time.Second

// Fault is a fault of a [Proxy]. Its methods may be called from any goroutine, except Await, which
// may end the test.
type Fault struct {
	kind  kind
	match Match

	mu        sync.Mutex
	remaining int           // number of requests that the fault may still hit
	hits      int           // number of hits
	nextHit   chan struct{} // closed at the next hit
	lifted    chan struct{} // closed when the fault is lifted
}

type kind int

const (
	losing     kind = iota // close the connection instead of passing the reply on
	halving                // pass on half of the reply, and close the connection
	swallowing             // drop the reply and all later replies
	holding                // keep the request
	blackhole              // keep all messages
)

func newFault(kind kind, n int, match Match) *Fault {
	return &Fault{kind: kind, match: match, remaining: n, nextHit: make(chan struct{}), lifted: make(chan struct{})}
}

// Hits returns how often the fault has hit.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Await returns when the fault has hit n times. Await ends the test if the n hits take longer than
// patience.
func (f *Fault) Await(t testing.TB, n int) {
	t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		hits, struck := f.hits, f.nextHit
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

// Lift ends the fault. There are no more hits, and the kept messages are passed on.
func (f *Fault) Lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isLifted() {
		close(f.lifted)
	}
}

// claimRequest reports whether the fault applies to this request. If so, claimRequest lowers the
// number of requests that the fault may still hit.
func (f *Fault) claimRequest(request message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isLifted() || f.remaining == 0 || !f.match(request) {
		return false
	}
	if f.remaining != Every {
		f.remaining--
	}
	return true
}

// countHit counts a hit. It returns false if the fault was lifted meanwhile.
func (f *Fault) countHit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isLifted() {
		return false
	}
	f.hits++
	close(f.nextHit)
	f.nextHit = make(chan struct{})
	return true
}

func (f *Fault) isLifted() bool {
	select {
	case <-f.lifted:
		return true
	default:
		return false
	}
}
