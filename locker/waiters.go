package locker

import "sync"

// waiters knows who waits in this process: to wake them when the Store says so, and to count them. What a Notifier says
// is only a hint, so a message that is lost or comes twice does no harm.
type waiters struct {
	notifier Notifier
	silence  func()

	mu      sync.Mutex
	waiting map[string]int                        // key → how many wait
	ears    map[string]map[chan struct{}]struct{} // key → channels to wake
}

func (w *waiters) init(s Store) {
	w.waiting = make(map[string]int)
	if n, ok := s.(Notifier); ok {
		w.notifier = n
		w.ears = make(map[string]map[chan struct{}]struct{})
		w.silence = n.Listen(func(e Event) { w.wake(e.Key) })
	}
}

// listen returns a channel that gets a signal when key may be free. It must be called before the Store is asked, so that
// a release between the answer and the pause is not missed. Without a Notifier the channel is nil and never ready.
func (w *waiters) listen(key string) (wake <-chan struct{}, leave func()) {
	if w.notifier == nil {
		return nil, func() {}
	}
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ears[key] == nil {
		w.ears[key] = make(map[chan struct{}]struct{})
	}
	w.ears[key][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.ears[key], ch); len(w.ears[key]) == 0 {
			delete(w.ears, key)
		}
	}
}

// wake is what the Notifier calls.
func (w *waiters) wake(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, ears := range w.ears {
		if k != key && key != "" {
			continue
		}
		for ch := range ears {
			select {
			case ch <- struct{}{}:
			default: // woken already
			}
		}
	}
}

// admit counts one more waiter for key, unless most wait already.
func (w *waiters) admit(key string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if most > 0 && w.waiting[key] >= most {
		return false
	}
	w.waiting[key]++
	return true
}

func (w *waiters) dismiss(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[key]--; w.waiting[key] == 0 {
		delete(w.waiting, key)
	}
}

func (w *waiters) stop() {
	if w.silence != nil {
		w.silence()
	}
}
