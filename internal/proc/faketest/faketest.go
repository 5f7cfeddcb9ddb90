// Package faketest tests helpers of tests. It runs such a helper with a [testing.TB] that may
// fail, while the real test does not fail.
package faketest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Test is a [testing.TB] that records its failures, logs and cleanups. Its other methods are the
// methods of the real test. [Run] makes a Test.
type Test struct {
	testing.TB

	mu       sync.Mutex
	failures []string
	logs     []string
	cleanups []func()
}

// Run runs the function body, which Fatal ends, and then the cleanups, the last cleanup first. It
// returns the Test, so that the caller can check it.
func Run(t testing.TB, body func(t testing.TB)) *Test {
	f := &Test{TB: t}
	done := make(chan struct{})
	go func() { // a new goroutine, because Fatal ends it
		defer close(done)
		body(f)
	}()
	<-done
	for _, cleanup := range slices.Backward(f.cleanups) {
		cleanup()
	}
	return f
}

// FailedWith reports whether a failure contains text.
func (f *Test) FailedWith(text string) bool { return f.isMentioned(&f.failures, text) }

// Logged reports whether a log line contains text.
func (f *Test) Logged(text string) bool { return f.isMentioned(&f.logs, text) }

// String returns all failures and logs, for the message of the real test.
func (f *Test) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("failures %q, logs %q", f.failures, f.logs)
}

// Failed reports whether there was a failure.
func (f *Test) Failed() bool { return f.isMentioned(&f.failures, "") }

// Cleanup records a function, which Run calls after the body.
func (f *Test) Cleanup(cleanup func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleanups = append(f.cleanups, cleanup)
}

// Log records a log line.
func (f *Test) Log(args ...any) { f.record(&f.logs, fmt.Sprintln(args...)) }

// Logf records a log line.
func (f *Test) Logf(format string, args ...any) { f.record(&f.logs, fmt.Sprintf(format, args...)) }

// Error records a failure.
func (f *Test) Error(args ...any) { f.record(&f.failures, fmt.Sprintln(args...)) }

// Errorf records a failure.
func (f *Test) Errorf(format string, args ...any) {
	f.record(&f.failures, fmt.Sprintf(format, args...))
}

// Fatal records a failure and ends the body.
func (f *Test) Fatal(args ...any) {
	f.Error(args...)
	runtime.Goexit()
}

// Fatalf records a failure and ends the body.
func (f *Test) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func (f *Test) record(list *[]string, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*list = append(*list, text)
}

func (f *Test) isMentioned(list *[]string, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(*list, func(s string) bool { return strings.Contains(s, text) })
}
