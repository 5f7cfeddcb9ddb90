package redistest

import (
	"errors"
	"testing"
	"time"
)

// The faults below are for a server of the test's own. One at a time; from any
// goroutine, for they report by t.Error.

// Pause stops the server with SIGSTOP and returns when it stands still:
// connections stay open and new ones are accepted by the kernel, but nothing is
// answered.
func (s *Server) Pause() { s.own().Helper(); s.report(s.process.Pause()) }

// Resume lets a paused server run on, with SIGCONT. It then serves what has
// piled up.
func (s *Server) Resume() { s.own().Helper(); s.report(s.process.Resume()) }

// Kill ends the server with SIGKILL and waits until it is gone.
func (s *Server) Kill() { s.own().Helper(); s.report(s.process.Kill()) }

// Restart runs the server anew on the same port: empty, as one without
// persistence comes back from a crash. It kills the present run first.
func (s *Server) Restart() {
	s.own().Helper()
	s.report(s.process.Kill())
	deadline := time.Now().Add(patience)
	for {
		err := s.listen()
		// Whoever took our port may be another test that only looks for a free one.
		if errors.Is(err, errPortTaken) && time.Now().Before(deadline) {
			continue
		}
		s.report(err)
		return
	}
}

// own is the test that owns the server. A shared one has none: what
// breaks it would break others, at random.
func (s *Server) own() testing.TB {
	if s.t == nil {
		panic("redistest: a shared server must stay up; take one of this test's own with redistest.Start")
	}
	return s.t
}

func (s *Server) report(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("%v\n%s", err, s.LogTail())
	}
}

// cleanUp runs when the test is over, passed or not. SIGKILL needs no SIGCONT
// before it.
func (s *Server) cleanUp() {
	if s.t.Failed() {
		s.t.Logf("redis-server on %s:\n%s", s.Addr(), s.LogTail())
	}
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
}
