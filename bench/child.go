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

// Several processes are several processes: the bench starts itself again, once
// for each, with a part to play. Parent and child talk in lines: what the child
// says is a word and some JSON, what the parent says is one word.

// partVariable names the part in a child's environment.
const partVariable = "LATCHKIT_BENCH_PART"

// parts are what a child can be told to do.
var parts = map[string]func(*stage) error{
	"crew":    crewPart,
	"duet":    duetPart,
	"hoard":   hoardPart,
	"holder":  holderPart,
	"heir":    heirPart,
	"library": libraryPart,
	"quorum":  quorumPart,
}

// playPart belongs at the start of main: in a child it does not return.
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

// stage is where a child plays its part.
type stage struct {
	spec   string
	parent *bufio.Reader
}

// read gives the child what the parent launched it with.
func (s *stage) read(spec any) error { return json.Unmarshal([]byte(s.spec), spec) }

func (s *stage) say(word string, what any) {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err) // a type of ours that JSON cannot hold
	}
	fmt.Printf("%s %s\n", word, text)
}

// await returns the parent's next word. Without a parent the child ends.
func (s *stage) await() string {
	line, err := s.parent.ReadString('\n')
	if err != nil {
		os.Exit(0)
	}
	return strings.TrimSpace(line)
}

// awaitStart returns the time that the parent sets for all children to begin.
func (s *stage) awaitStart() (time.Duration, error) {
	nanos, err := time.ParseDuration(s.await())
	return nanos, err
}

// child is the parent's view of one.
type child struct {
	process *proc.Process
	in      io.Writer
	out     *bufio.Reader
}

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
	// Under the race detector a child would take a second to end.
	cmd.Env = append(os.Environ(), partVariable+"="+part, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, said := io.Pipe() // a StdoutPipe would be closed on what we have not read yet
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

// expect reads the child's next line, which must begin with word. What else it
// says goes into into, unless that is nil.
func (c *child) expect(ctx context.Context, word string, into any) error {
	defer context.AfterFunc(ctx, func() { _ = c.process.Kill() })()
	line, err := c.out.ReadString('\n')
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

func (c *child) say(word string) error {
	_, err := fmt.Fprintln(c.in, word)
	return err
}

// children are those of one turn.
type children []*child

// patience is what a turn may take beside its own time. Only a library that hangs spends it.
const patience = 30 * time.Second

// launchAll starts one child for each spec.
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

// expectAll reads one line of each child.
func expectAll[T any](ctx context.Context, all children, word string) ([]T, error) {
	said := make([]T, len(all))
	for i, c := range all {
		if err := c.expect(ctx, word, &said[i]); err != nil {
			return nil, err
		}
	}
	return said, nil
}

// start makes all begin at the same moment, as soon as each has heard of it.
func (all children) start() error {
	at := monotonic() + 20*time.Millisecond
	for _, c := range all {
		if err := c.say(at.String()); err != nil {
			return err
		}
	}
	return nil
}

// finish waits for children that have said their last word.
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

// end kills the children that are still there.
func (all children) end() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.process.Kill())
	}
	return err
}
