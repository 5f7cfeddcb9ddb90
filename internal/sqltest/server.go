package sqltest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
)

const (
	loopback = "127.0.0.1"

	// patience is the longest wait for a server to answer or to end.
	patience = 60 * time.Second

	// pollPause is the pause between two checks of a starting server.
	pollPause = 10 * time.Millisecond

	// The ports are below the range in which the kernel picks ports for outgoing connections.
	lowestPort, highestPort = 10000, 32000

	// tailLines is how many lines of the log an error of a failed start contains.
	tailLines = 20
)

// Server is a running database server. [Start], [Shared] and [Launch] return a Server; the zero
// value is not usable.
type Server struct {
	kind    Kind
	dir     string
	port    int
	log     string
	account *syscall.Credential // the account of the server process; nil: the account of this process
	process *proc.Process
}

// Start starts a server for this test alone. The server stops when the test ends.
func Start(t testing.TB, kind Kind) *Server {
	t.Helper()
	s, err := Launch(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v on %s:\n%s", kind, s.Addr(), s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Launch starts a server. The server runs until Close is called.
func Launch(kind Kind) (*Server, error) {
	dir, err := os.MkdirTemp("", "sqltest")
	if err != nil {
		return nil, err
	}
	s := &Server{kind: kind, dir: dir, log: filepath.Join(dir, "server.log")}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.port)) }

// DSN returns the DSN of a database of this server, for pgx or for go-sql-driver.
func (s *Server) DSN(database string) string { return s.kind.DSN(s.Addr(), database) }

// LogTail returns the end of the server's log.
func (s *Server) LogTail() string {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// Close stops the server and removes its folder. Servers of tests are closed automatically.
func (s *Server) Close() error { return errors.Join(s.stop(), os.RemoveAll(s.dir)) }

func (s *Server) stop() error {
	// SIGQUIT makes PostgreSQL shut down at once. SIGKILL would leave PostgreSQL's shared memory
	// behind.
	_ = syscall.Kill(s.process.Pid(), syscall.SIGQUIT)
	if s.kind == Postgres {
		select {
		case <-s.process.Exited():
		case <-time.After(patience):
		}
	}
	return s.process.Kill()
}

// start prepares the folder and starts the server. If the port is in use, start tries another port.
func (s *Server) start() error {
	if err := s.chooseAccount(); err != nil {
		return err
	}
	if err := s.kind.prepare(s); err != nil {
		return err
	}
	var err error
	for range 10 {
		s.port = lowestPort + rand.IntN(highestPort-lowestPort)
		if err = s.listen(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// chooseAccount sets the account of the server process. PostgreSQL refuses to run as root. So root
// uses the account that PostgreSQL's package has created, and makes this account the owner of the
// folder.
func (s *Server) chooseAccount() error {
	if s.kind != Postgres || os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("%w: postgres does not run as root, and there is no account postgres: %w", errMissing(s.kind), err)
	}
	uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return err
	}
	s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, int(uid), int(gid))
}

// command returns a command that runs the program name of the server's package with args. The
// program runs in the server's folder with the server's account.
func (s *Server) command(name string, args ...string) (*exec.Cmd, error) {
	program, err := find(name)
	if err != nil {
		return nil, errMissing(s.kind)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if s.account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account}
	}
	return cmd, nil
}

// find returns the path of the program name. It looks in PATH and in the folders where Debian keeps
// servers, and takes the last of several versions.
func find(name string) (string, error) {
	program, err := exec.LookPath(name)
	if err == nil {
		return program, nil
	}
	for _, pattern := range outOfPath {
		found, _ := filepath.Glob(filepath.Join(pattern, name)) // Glob fails only for invalid patterns, and these are valid
		slices.Sort(found)
		for _, program := range slices.Backward(found) {
			if p, err := exec.LookPath(program); err == nil {
				return p, nil
			}
		}
	}
	return "", err
}

// outOfPath has the folders outside of PATH in which find looks for programs.
var outOfPath = []string{"/usr/lib/postgresql/*/bin", "/usr/sbin", "/usr/local/sbin"}

func errMissing(kind Kind) error {
	return fmt.Errorf("a real %v is to be started, and there is none: run `make tools` "+
		"(Debian, as root), or install it with `apt-get install %s` or `brew install %s`", kind, kind.row().debian, kind.row().brew)
}

var errPortTaken = errors.New("somebody else listens on the port")

// listen starts the server on its port, and returns when the server is ready.
func (s *Server) listen() error {
	log, err := os.Create(s.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, err := s.command(s.kind.row().program, s.kind.row().args(s)...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = proc.Launch(cmd); err != nil {
		return fmt.Errorf("start %v: %w", s.kind, err)
	}
	look := time.NewTicker(pollPause)
	defer look.Stop()
	deadline := time.After(patience)
	for !s.kind.row().ready(s) {
		select {
		case <-look.C:
		case <-s.process.Exited():
			if strings.Contains(s.LogTail(), "Address already in use") {
				return fmt.Errorf("start %v on %s: %w", s.kind, s.Addr(), errPortTaken)
			}
			return fmt.Errorf("%v ended with exit code %d:\n%s", s.kind, s.process.ExitCode(), s.LogTail())
		case <-deadline:
			return errors.Join(fmt.Errorf("%v is not ready on %s after %v:\n%s", s.kind, s.Addr(), patience, s.LogTail()), s.process.Kill())
		}
	}
	return nil
}
