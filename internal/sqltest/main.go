package sqltest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared has the servers that the tests of the test binary share.
var shared = servers{running: map[Kind]*Server{}}

// servers has one server of each kind. A server starts when a test first uses it. Before open and
// after close, no test can use a server.
type servers struct {
	mu      sync.Mutex
	opened  bool
	running map[Kind]*Server
}

// Main returns a runner that runs the tests of m and then stops the shared servers.
func Main(m interface{ Run() int }) interface{ Run() int } { return &runner{&shared, m} }

type runner struct {
	servers *servers
	tests   interface{ Run() int }
}

// Run runs the tests, and returns the exit code of the test binary.
func (r *runner) Run() int {
	r.servers.open()
	code := r.tests.Run()
	if err := r.servers.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cmp.Or(code, 1)
	}
	return code
}

// Shared returns the server of a kind that all tests of the package share. Other tests use the
// server at the same time, so use your own database or schema, and do not stop the server.
func Shared(t testing.TB, kind Kind) *Server {
	t.Helper()
	s, err := shared.get(kind)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *servers) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
}

func (s *servers) get(kind Kind) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return nil, errors.New("sqltest.Shared: nobody would stop the server; write func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }")
	}
	if running := s.running[kind]; running != nil {
		return running, nil
	}
	started, err := Launch(kind)
	if err == nil {
		s.running[kind] = started
	}
	return started, err
}

func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = false
	var errs []error
	for kind, running := range s.running {
		errs = append(errs, running.Close())
		delete(s.running, kind)
	}
	return errors.Join(errs...)
}
