package redistest

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
)

// Server is a running redis-server. [Start] and [Shared] return a Server; the zero value is not
// usable.
type Server struct {
	t        testing.TB // the test that owns the server; nil: the server is shared
	dir      string
	args     []string
	environ  []string // nil: the environment of the test
	config   string   // the first contents of the server's configuration file; "": no file
	port     int
	password string
	tls      *tls.Config // the configuration of its clients; nil: the server does not use TLS

	process *proc.Process // the process of the present run
	log     string        // the log file of the present run
}

// Start starts a server for this test alone. The server stops when the test ends. The arguments are
// arguments of redis-server, for example "--maxmemory", "1mb".
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

// Shared returns the server that all tests of the package share. The server starts with the first
// of these tests and ends with [Main]. Other tests use the server at the same time, so use your own
// keys, and do not stop the server.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared.get()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Launch starts a server outside of tests. The server runs until Close is called.
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

// Close kills the server and removes its folder. Servers of tests are closed automatically.
func (s *Server) Close() error {
	return errors.Join(s.process.Kill(), os.RemoveAll(s.dir))
}

// Addr returns the server's host:port, for redis.Options.
func (s *Server) Addr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.port)) }

// Port returns the port on which the server listens. A Restart keeps the port.
func (s *Server) Port() int { return s.port }

// Client returns a client of this server, after a PING has shown that the client works. The client
// is closed when the test ends. The client's options are go-redis' defaults, changed by mod.
func (s *Server) Client(t testing.TB, mod ...func(*redis.Options)) *redis.Client {
	t.Helper()
	options := &redis.Options{Addr: s.Addr(), Password: s.password, TLSConfig: s.tls}
	for _, change := range mod {
		change(options)
	}
	client := redis.NewClient(options)
	client.AddHook(scriptCheck{t})
	// Close can fail only if the test itself has already closed the client.
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatalf("ping %s: %v\n%s", options.Addr, err, s.LogTail())
	}
	return client
}
