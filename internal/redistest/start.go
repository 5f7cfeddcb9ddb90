package redistest

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
)

const (
	loopback = "127.0.0.1"

	// patience is the longest wait for a server to answer. A start takes some ten milliseconds.
	// Only a broken or overloaded machine needs longer.
	patience = 30 * time.Second

	// pollPause is the pause between two checks of a starting server.
	pollPause = 5 * time.Millisecond

	// A server keeps its port over a Restart, but does not listen meanwhile. In this time, the
	// kernel must not give the port to an outgoing connection, for example of a client that tries
	// to reconnect. So all ports are below the range from which the kernel takes ports for such
	// connections (Linux: from 32768, others: from 49152).
	lowestPort, highestPort = 10000, 32000

	// Each node of a cluster has a second port, for the other nodes. The number of the second port
	// is higher by busOffset.
	busOffset = 10000
)

// errMissing is the error for a missing redis-server. The text of the error describes how to
// install redis-server.
var errMissing = errors.New("a real redis-server is to be started, and there is none in PATH: run `make tools` " +
	"(Debian, as root), or install it with `apt-get install redis-server` or `brew install redis`")

var errPortTaken = errors.New("somebody else listens on the port")

// start starts the server on a port that pick returns. The server itself detects a port that is in
// use, because the result of an earlier check could be outdated when the server begins to listen.
func (s *Server) start(pick func() int) error {
	if i := slices.Index(s.args, "--requirepass"); i >= 0 && i+1 < len(s.args) {
		s.password = s.args[i+1]
	}
	var err error
	for range 10 {
		if s.port = pick(); slices.Contains(s.args, "--cluster-enabled") && s.port+busOffset > highestPort {
			s.port -= busOffset
		}
		if err = s.listen(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

func randomPort() int { return lowestPort + rand.IntN(highestPort-lowestPort) }

// listen starts the server on its port, and returns when the server answers.
func (s *Server) listen() error {
	log, err := os.CreateTemp(s.dir, "redis-*.log")
	if err != nil {
		return err
	}
	defer log.Close()
	s.log = log.Name()

	args := []string{
		"--bind", loopback, "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "no",
	}
	if s.tls != nil {
		args[3] = "0"
		args = append(args, "--tls-port", strconv.Itoa(s.port))
	}
	if s.config != "" {
		file, err := s.configFile()
		if err != nil {
			return err
		}
		args = slices.Insert(args, 0, file)
	}
	cmd := exec.Command("redis-server", append(args, s.args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, s.environ
	process, err := proc.Launch(cmd)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errMissing
	case err != nil:
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.process = process
	return s.awaitAnswer()
}

// configFile writes the configuration file, once only, because a Sentinel stores its state in the
// file. It returns the file's path.
func (s *Server) configFile() (string, error) {
	name := filepath.Join(s.dir, "redis.conf")
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	return name, os.WriteFile(name, []byte(s.config), 0o600)
}

// awaitAnswer returns when the server's own process, and no other process, replies on the port.
func (s *Server) awaitAnswer() error {
	look := time.NewTicker(pollPause)
	defer look.Stop()
	deadline := time.After(patience)
	for {
		if pid, err := s.whoAnswers(); err == nil && pid == s.process.Pid() {
			return nil
		}
		select {
		case <-look.C:
		case <-s.process.Exited():
			if strings.Contains(s.LogTail(), "Address already in use") {
				return fmt.Errorf("start redis-server on %s: %w", s.Addr(), errPortTaken)
			}
			return fmt.Errorf("redis-server %q ended with exit code %d:\n%s", s.args, s.process.ExitCode(), s.LogTail())
		case <-deadline:
			return errors.Join(
				fmt.Errorf("redis-server %q did not answer on %s within %v:\n%s", s.args, s.Addr(), patience, s.LogTail()),
				s.process.Kill())
		}
	}
}

// whoAnswers returns the process id of the server that replies on the port. The bare protocol is
// used, because the pool of a client would log the first refusals, and wait after each refusal.
func (s *Server) whoAnswers() (pid int, err error) {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return 0, err
	}
	if s.tls != nil {
		conn = tls.Client(conn, s.tls)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	question := "INFO server\r\n"
	if s.password != "" {
		question = fmt.Sprintf("AUTH %q\r\n", s.password) + question
	}
	if _, err := io.WriteString(conn, question); err != nil {
		return 0, err
	}
	answer := bufio.NewScanner(conn)
	for answer.Scan() {
		if id, ok := strings.CutPrefix(answer.Text(), "process_id:"); ok {
			return strconv.Atoi(id)
		}
		if strings.HasPrefix(answer.Text(), "-") {
			return 0, errors.New(answer.Text())
		}
	}
	return 0, cmp.Or(answer.Err(), io.ErrUnexpectedEOF)
}
