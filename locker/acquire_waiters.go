package locker

import "sync"

// waiters counts the waiters in this process for each key.
type waiters struct {
	mu sync.Mutex
	n  map[string]int
}

// enter counts one more waiter for key. If the key already has as many waiters as the parameter
// most, enter returns false.
func (w *waiters) enter(key string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if most > 0 && w.n[key] >= most {
		return false
	}
	if w.n == nil {
		w.n = make(map[string]int)
	}
	w.n[key]++
	return true
}

// dismiss counts one waiter less for key.
func (w *waiters) dismiss(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[key]--; w.n[key] == 0 {
		delete(w.n, key)
	}
}
