package redistest

import (
	"errors"
	"testing"
	"time"
)

// The faults below are for the server of one test, and not for a shared server. Use one fault at a
// time. Any goroutine may cause a fault, because the methods report by t.Error.

// Pause stops the server with SIGSTOP, and returns when the server has stopped. Connections stay
// open, and the kernel accepts new connections, but the server does not reply.
func (s *Server) Pause() { s.owner().Helper(); s.report(s.process.Pause()) }

// Resume continues a paused server with SIGCONT. The server then serves the requests that have
// arrived meanwhile.
func (s *Server) Resume() { s.owner().Helper(); s.report(s.process.Resume()) }

// Kill ends the server with SIGKILL and waits until it is gone.
func (s *Server) Kill() { s.owner().Helper(); s.report(s.process.Kill()) }

// Restart kills the server and starts it again on the same port. The server is then empty, as after
// a crash without persistence.
func (s *Server) Restart() {
	s.owner().Helper()
	s.report(s.process.Kill())
	deadline := time.Now().Add(patience)
	for {
		err := s.listen()
		// Another test that searches for a free port may occupy this server's port for a moment.
		if errors.Is(err, errPortTaken) && time.Now().Before(deadline) {
			continue
		}
		s.report(err)
		return
	}
}

// owner returns the test that owns the server. A shared server has no owner, and for such a server
// the method owner panics. A fault of a shared server would make other tests fail at random.
func (s *Server) owner() testing.TB {
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

// cleanUp runs at the end of the test. SIGKILL also ends a paused server.
func (s *Server) cleanUp() {
	if s.t.Failed() {
		s.t.Logf("redis-server on %s:\n%s", s.Addr(), s.LogTail())
	}
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
}
