package redistest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

// shared is the server of the test binary.
var shared sharedServer

// Main is a whole TestMain: it runs the tests, stops the shared server and exits. The functions in
// the parameter checks are checks such as a check for leaked goroutines. They run after the server
// has stopped, if the tests have passed. An error of one check fails the package.
//
// The parameter m is the *testing.M, or a wrapper of it, such as the result of sqltest.Main.
func Main(m interface{ Run() int }, checks ...func() error) {
	runMoreAtOnce()
	os.Exit(shared.run(m, checks...))
}

// runMoreAtOnce lets six times as many tests as usual run at once, because tests with servers mostly
// wait for time to pass. The flag -parallel of the command line has the last word: either it was
// read before, and is set, or it is read later.
func runMoreAtOnce() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(6*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}

// sharedServer starts its server when a test first uses it. Before open and after close, no test
// can use it.
type sharedServer struct {
	mu     sync.Mutex
	opened bool
	server *Server
}

// run runs the tests, and returns the exit code of the test binary.
func (s *sharedServer) run(tests interface{ Run() int }, checks ...func() error) int {
	s.open()
	code := tests.Run()
	errs := []error{s.close()}
	if code == 0 { // failed tests may leave goroutines and keys behind, so the checks run only without failures
		for _, check := range checks {
			errs = append(errs, check())
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cmp.Or(code, 1)
	}
	return code
}

func (s *sharedServer) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
}

func (s *sharedServer) get() (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return nil, errors.New("redistest.Shared: nobody would stop the server; write func TestMain(m *testing.M) { redistest.Main(m) }")
	}
	if s.server != nil {
		return s.server, nil
	}
	var err error
	s.server, err = Launch()
	return s.server, err
}

func (s *sharedServer) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = false
	if s.server == nil {
		return nil
	}
	err := s.server.Close()
	s.server = nil
	return err
}
