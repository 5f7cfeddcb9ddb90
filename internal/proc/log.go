package proc

import (
	"bytes"
	"testing"
)

// logger is a writer that hands what a child complains about to the test's log.
// The log ends with the test; the child's cleanup waits for the last line. A data
// race fails the test here: a child that is killed while the race detector ends it
// has no exit code that tells.
type logger struct {
	t       testing.TB
	name    string
	partial []byte
}

// raceReport is how the race detector begins.
const raceReport = "WARNING: DATA RACE"

// Write never fails. It is called by one goroutine at a time.
func (l *logger) Write(text []byte) (int, error) {
	l.partial = append(l.partial, text...)
	if end := bytes.LastIndexByte(l.partial, '\n'); end >= 0 {
		say := l.t.Logf
		if bytes.Contains(l.partial[:end], []byte(raceReport)) {
			say = l.t.Errorf
		}
		say("%s: %s", l.name, l.partial[:end])
		l.partial = append([]byte(nil), l.partial[end+1:]...)
	}
	return len(text), nil
}
