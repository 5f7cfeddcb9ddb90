package redistest

import (
	"errors"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
)

// Server is a running redis-server. It is made by [Start] and [Shared]; the
// zero value is of no use.
type Server struct {
	t        testing.TB // the test that owns it, if one does
	dir      string
	args     []string
	config   string // what its configuration file says at first; "": it needs none
	port     int
	password string

	process *proc.Process // the present run, and
	log     string        // the file it writes to
}

// Start runs a server for this test alone, until the test ends. Arguments are
// those of redis-server: "--maxmemory", "1mb", or "--replicaof", "127.0.0.1", "6379".
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := Launch(args...)
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	t.Cleanup(s.cleanUp)
	return s
}

// Shared is the server that all tests of the package use together. It starts
// with the first of them and ends with [Main]. Other tests run on it at the same
// time: use keys of your own, and leave it standing.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared.get()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Launch runs a server for a program that is no test, until it is closed.
func Launch(args ...string) (*Server, error) { return launch(&Server{args: args}) }

func launch(s *Server) (*Server, error) {
	var err error
	if s.dir, err = os.MkdirTemp("", "redistest"); err != nil {
		return nil, err
	}
	if err := s.start(randomPort); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// Close kills the server and removes its folder. Those of tests are closed by
// themselves.
func (s *Server) Close() error {
	return errors.Join(s.process.Kill(), os.RemoveAll(s.dir))
}

// Addr is the server's host:port, as redis.Options takes it.
func (s *Server) Addr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.port)) }

// Port is the port the server listens on. It stays the same over a Restart.
func (s *Server) Port() int { return s.port }

// Client is a client of this server, proved to work by a PING, and closed when
// the test ends. Its options are go-redis's own defaults, after mod had its say.
func (s *Server) Client(t testing.TB, mod ...func(*redis.Options)) *redis.Client {
	t.Helper()
	options := &redis.Options{Addr: s.Addr(), Password: s.password}
	for _, change := range mod {
		change(options)
	}
	client := redis.NewClient(options)
	client.AddHook(scriptCheck{t})
	// A test may have closed it; that is all Close can complain about.
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("ping %s: %v\n%s", options.Addr, err, s.LogTail())
	}
	return client
}
