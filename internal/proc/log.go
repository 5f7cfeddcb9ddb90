package proc

import (
	"bytes"
	"testing"
)

// logger is a writer that copies a child's standard error to the test's log. The child's cleanup
// waits for the last line, because the test's log ends with the test. If logger sees the report of
// a data race, it fails the test, because the exit code of a killed child does not show the race.
type logger struct {
	t       testing.TB
	name    string
	partial []byte
}

// raceReport is the beginning of a report of the race detector.
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
