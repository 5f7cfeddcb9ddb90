package framework_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/latchkit/latchkit/internal/framework"
)

// A middleware joins the error of a write and the error of its commit. The second error is a
// failure of the work.
func TestAJoinedErrorIsAFailure(t *testing.T) {
	write, commit := framework.Unsent(syscall.EPIPE), errors.New("the commit has failed")
	for _, tc := range []struct {
		err  error
		only bool
	}{
		{nil, false},
		{commit, false},
		{syscall.EPIPE, false}, // not of the writer to the client
		{write, true},
		{fmt.Errorf("reply: %w", write), true},
		{errors.Join(write, commit), false},
		{fmt.Errorf("%w; %w", commit, write), false},
		{fmt.Errorf("reply: %w", errors.Join(write, commit)), false},
	} {
		if got := framework.OnlyUnsent(tc.err); got != tc.only {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
	if !errors.Is(write, syscall.EPIPE) {
		t.Error("the mark hides the error of the write")
	}
}
