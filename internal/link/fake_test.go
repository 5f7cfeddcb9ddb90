package link

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// errNo is the error that a broken fake client returns.
var errNo = errors.New("the connection broke")

// fake is a client in a synctest bubble. After a delay, the fake answers each command with the
// command's second word. While the fake is stopped, it answers nothing. If obeys is true, a call
// ends with its context. Otherwise the fake is like a client without time-outs.
type fake struct {
	mu      sync.Mutex
	delay   time.Duration
	obeys   bool
	stopped chan struct{} // closed when the fake continues; nil: the fake is not stopped
	err     error
	sent    [][]string // the commands that were sent together
	most    int        // the largest number of commands or pipelines that were under way together
	now     int
}

func (f *fake) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = make(chan struct{})
}

func (f *fake) resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.stopped)
	f.stopped = nil
}

func (f *fake) sentTogether() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([][]string(nil), f.sent...)
}

func (f *fake) send(ctx context.Context, cmds []redis.Cmder) error {
	f.mu.Lock()
	var words []string
	for _, cmd := range cmds {
		words = append(words, cmd.Args()[1].(string))
	}
	f.sent = append(f.sent, words)
	f.now++
	f.most = max(f.most, f.now)
	stopped, delay, err := f.stopped, f.delay, f.err
	var ends <-chan struct{}
	if f.obeys {
		ends = ctx.Done()
	}
	f.mu.Unlock()
	if delay > 0 {
		time.Sleep(delay) //nolint:forbidigo // in a bubble
	}
	if stopped != nil {
		select {
		case <-stopped:
		case <-ends:
			err = ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now--
	for i, cmd := range cmds {
		if err != nil {
			cmd.SetErr(err)
		} else {
			cmd.(noRetryCmd).SetVal(words[i])
		}
	}
	return err
}

// Process implements Client.
func (f *fake) Process(ctx context.Context, cmd redis.Cmder) error {
	return f.send(ctx, []redis.Cmder{cmd})
}

// piped is a fake that pipelines.
type piped struct{ *fake }

func (p piped) Pipeline() redis.Pipeliner { return &pipe{fake: p.fake} }

type pipe struct {
	redis.Pipeliner
	fake *fake
	cmds []redis.Cmder
}

func (p *pipe) Process(_ context.Context, cmd redis.Cmder) error {
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pipe) Exec(ctx context.Context) ([]redis.Cmder, error) {
	return p.cmds, p.fake.send(ctx, p.cmds)
}

// setDelay sets the delay of each answer.
func (f *fake) setDelay(delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = delay
}

// breakWith makes each later call of the fake end with the error err.
func (f *fake) breakWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// mostTogether returns the largest number of commands or pipelines that were under way together.
func (f *fake) mostTogether() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// readLink returns the result of the function read, which runs while the link's mutex is locked.
func readLink[T any](ls *Links, read func(l *link) T) T {
	ls.single.mu.Lock()
	defer ls.single.mu.Unlock()
	return read(ls.single)
}

// done returns the channel that is signalled when the call c has its answer.
func done(c *Call) <-chan struct{} { return c.Receiver.(signal) }

// namedCall returns a call whose answer is its name.
func namedCall(name string, class Class) *Call {
	return &Call{Words: []any{"echo", name}, Class: class, Key: name, Receiver: make(signal, 1)}
}

// bubble runs a test with a fake node. If pipes is true, the link treats the client as a client of
// go-redis.
func bubble(t *testing.T, pipes, direct bool, test func(t *testing.T, f *fake, ls *Links)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		ls := New(f, Options{})
		if pipes {
			ls.single.pipe, ls.single.plain.pipe, ls.single.plain.usual = piped{f}, piped{f}, 1
			if direct {
				ls.single.ends = endsWithContext
			}
		}
		test(t, f, ls)
		synctest.Wait()
		if err := ls.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// checkAnswered checks that the call c has its answer within the time limit.
func checkAnswered(t *testing.T, c *Call, limit time.Duration) {
	t.Helper()
	select {
	case <-done(c):
		if text, err := c.Answer(); err != nil || text != c.Words[1] {
			t.Errorf("the answer to %v is %q, %v", c.Words[1], text, err)
		}
	case <-time.After(limit):
		t.Errorf("%v has no answer after %v", c.Words[1], limit)
	}
}

// checkFails checks that the call c ends with the error want after the given delay.
func checkFails(t *testing.T, c *Call, want error, delay time.Duration) {
	t.Helper()
	began := time.Now()
	<-done(c)
	if _, err := c.Answer(); !errors.Is(err, want) {
		t.Errorf("%v ended with %v, not with %v", c.Words[1], err, want)
	}
	if took := time.Since(began); took > delay {
		t.Errorf("%v ended after %v, not within %v", c.Words[1], took, delay)
	}
}
