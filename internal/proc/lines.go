package proc

import (
	"bytes"
	"sync"
)

// lines is a writer that splits the output of a child into lines. It buffers any number of lines.
// So a child never stalls because its parent is busy.
type lines struct {
	more chan struct{} // contains a signal when there may be new lines

	mu      sync.Mutex
	partial []byte
	whole   []string
}

func newLines() *lines {
	return &lines{more: make(chan struct{}, 1)}
}

// Write never fails.
func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, text...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(text), nil
		}
		l.partial = rest
		l.whole = append(l.whole, string(line))
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// take removes the oldest line and returns it, or returns false if there is no line.
func (l *lines) take() (line string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.whole) == 0 {
		return "", false
	}
	line, l.whole = l.whole[0], l.whole[1:]
	return line, true
}
