// Package faketest tests what is made for tests: it runs code on a [testing.TB]
// that may fail without failing the test that looks at it.
package faketest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Test is a [testing.TB] whose failures, logs and cleanups are kept to itself.
// What it does not keep, it asks of the real test. It is made by [Run].
type Test struct {
	testing.TB

	mu       sync.Mutex
	failures []string
	logs     []string
	cleanups []func()
}

// Run is the life of a test: the body, which Fatal ends, then the cleanups, the
// last one first. It returns what can be asked about it afterwards.
func Run(t testing.TB, body func(t testing.TB)) *Test {
	f := &Test{TB: t}
	done := make(chan struct{})
	go func() { // a goroutine of its own is what Fatal can end
		defer close(done)
		body(f)
	}()
	<-done
	for _, cleanup := range slices.Backward(f.cleanups) {
		cleanup()
	}
	return f
}

// FailedWith says whether a failure mentioned text.
func (f *Test) FailedWith(text string) bool { return f.mentioned(&f.failures, text) }

// Logged says whether a log line mentioned text.
func (f *Test) Logged(text string) bool { return f.mentioned(&f.logs, text) }

// String is all that the test said, for the message of the test that looks.
func (f *Test) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("failures %q, logs %q", f.failures, f.logs)
}

// Failed says whether there was any failure.
func (f *Test) Failed() bool { return f.mentioned(&f.failures, "") }

// Cleanup keeps what is to run at the end.
func (f *Test) Cleanup(cleanup func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleanups = append(f.cleanups, cleanup)
}

// Log keeps a log line.
func (f *Test) Log(args ...any) { f.keep(&f.logs, fmt.Sprintln(args...)) }

// Logf keeps a log line.
func (f *Test) Logf(format string, args ...any) { f.keep(&f.logs, fmt.Sprintf(format, args...)) }

// Error keeps a failure.
func (f *Test) Error(args ...any) { f.keep(&f.failures, fmt.Sprintln(args...)) }

// Errorf keeps a failure.
func (f *Test) Errorf(format string, args ...any) {
	f.keep(&f.failures, fmt.Sprintf(format, args...))
}

// Fatal keeps a failure and ends the body.
func (f *Test) Fatal(args ...any) {
	f.Error(args...)
	runtime.Goexit()
}

// Fatalf keeps a failure and ends the body.
func (f *Test) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func (f *Test) keep(in *[]string, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*in = append(*in, text)
}

func (f *Test) mentioned(in *[]string, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(*in, func(s string) bool { return strings.Contains(s, text) })
}
