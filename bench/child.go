package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
)

// A row measures real processes. So the bench starts its own program again as a child process,
// and names the function that the child must run: its part. Parent and child send each other
// lines of text. A line from the child is one word, such as "ready", and a value in JSON. A
// line from the parent is only one word.

// partVariable is the environment variable that contains the name of a child's part.
const partVariable = "LATCHKIT_BENCH_PART"

// parts has, by name, the functions that a child process can run.
var parts = map[string]func(*stage) error{
	"crew":    crewPart,
	"duet":    duetPart,
	"hoard":   hoardPart,
	"holder":  holderPart,
	"heir":    heirPart,
	"library": libraryPart,
	"quorum":  quorumPart,
}

// If this process is a child, playPart runs the part that the parent chose, and does not
// return. Call playPart at the start of main.
func playPart() {
	name, child := os.LookupEnv(partVariable)
	if !child {
		return
	}
	play, known := parts[name]
	if !known {
		fmt.Fprintf(os.Stderr, "bench: there is no part %q\n", name)
		os.Exit(2)
	}
	s := &stage{spec: os.Args[1], parent: bufio.NewReader(os.Stdin)}
	if err := play(s); err != nil {
		s.say("failed", err.Error())
	}
	os.Exit(0)
}

// stage connects a part with the parent process: it has the specification of the work, and
// exchanges lines with the parent.
type stage struct {
	spec   string
	parent *bufio.Reader
}

// read decodes the specification that the parent gave the child, into the value to which spec
// points.
func (s *stage) read(spec any) error { return json.Unmarshal([]byte(s.spec), spec) }

// say sends the parent a line that consists of word, and of value as JSON.
func (s *stage) say(word string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // a type that JSON cannot encode is a mistake in this package
	}
	fmt.Printf("%s %s\n", word, text)
}

// await returns the parent's next word. If the parent has ended, await ends this child process.
func (s *stage) await() string {
	line, err := s.parent.ReadString('\n')
	if err != nil {
		os.Exit(0)
	}
	return strings.TrimSpace(line)
}

// awaitStart returns the time that the parent has set for all children to begin.
func (s *stage) awaitStart() (time.Duration, error) {
	nanos, err := time.ParseDuration(s.await())
	return nanos, err
}

// child is a child process, as its parent sees it.
type child struct {
	process *proc.Process
	stdin   io.Writer
	stdout  *bufio.Reader
}

// launch starts this program as a child process that runs part. spec is sent to the child as JSON.
func launch(part string, spec any) (*child, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, string(text))
	// Without this setting, a child would take a second to end under the race detector.
	cmd.Env = append(os.Environ(), partVariable+"="+part, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, said := io.Pipe() // not a StdoutPipe, because Wait would close it before the bench has read all lines
	cmd.Stdout = said
	process, err := proc.Launch(cmd)
	if err != nil {
		return nil, err
	}
	go func() {
		<-process.Exited()
		_ = said.Close()
	}()
	return &child{process, in, bufio.NewReader(out)}, nil
}

// expect reads the child's next line, which must begin with word. It decodes the rest of the line
// into the parameter into, if that is not nil.
func (c *child) expect(ctx context.Context, word string, into any) error {
	defer context.AfterFunc(ctx, func() { _ = c.process.Kill() })()
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("a child ended before it said %q", word), ctx.Err())
	}
	said, text, _ := strings.Cut(line, " ")
	if said != word {
		return fmt.Errorf("a child says %s", strings.TrimSpace(line))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal([]byte(text), into)
}

// say sends the child a line with one word.
func (c *child) say(word string) error {
	_, err := fmt.Fprintln(c.stdin, word)
	return err
}

// children are the child processes that work in one turn.
type children []*child

// patience is how much longer than planned a turn may take. After this time, the bench kills
// the children. It is so long that this happens only when the measured library hangs.
const patience = 30 * time.Second

// launchAll starts one child for each spec. Each child runs part.
func launchAll[T any](part string, specs []T) (all children, err error) {
	for _, spec := range specs {
		c, err := launch(part, spec)
		if err != nil {
			return nil, errors.Join(err, all.end())
		}
		all = append(all, c)
	}
	return all, nil
}

// expectAll reads one line from each child, which must begin with word. It returns the decoded
// lines.
func expectAll[T any](ctx context.Context, all children, word string) ([]T, error) {
	said := make([]T, len(all))
	for i, c := range all {
		if err := c.expect(ctx, word, &said[i]); err != nil {
			return nil, err
		}
	}
	return said, nil
}

// start sends to all children the same time, at which each child begins its work.
func (all children) start() error {
	at := monotonic() + 20*time.Millisecond
	for _, c := range all {
		if err := c.say(at.String()); err != nil {
			return err
		}
	}
	return nil
}

// finish waits until all children have ended. Before the call, each child must have sent its
// last line.
func (all children) finish() error {
	late := time.After(patience)
	for _, c := range all {
		select {
		case <-c.process.Exited():
		case <-late:
			return errors.New("a child does not end")
		}
		if code := c.process.ExitCode(); code != 0 {
			return fmt.Errorf("a child ended with exit code %d", code)
		}
	}
	return nil
}

// end kills the children that are still running.
func (all children) end() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.process.Kill())
	}
	return err
}
