package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/internal/self"
	"github.com/latchkit/latchkit/locker"
)

// running is one call of latchctl run.
type running struct {
	rule           locker.Rule
	shared, noWait bool
	limit          int
	wait           time.Duration
	grace          time.Duration
	conflict, lost int // exit codes
	longest, skew  time.Duration
	command        []string
	messages       io.Writer
	lossReported   bool // true: latchctl has already printed that the lock was lost
}

func newRun(to *servers) *cobra.Command {
	var r running
	c := &cobra.Command{
		Use:   "run KEY -- COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a lock: flock for clusters",
		Long: `run takes the lock, runs the command, renews the lease meanwhile, and releases the
lock when the command has ended. It is flock(1) for machines that share a Redis, and
its lock is the lock that locker.Run takes in a service.

If the lease is lost (Redis lost it, an operator broke it, or the machine was
suspended for longer than the TTL), the command's process group gets SIGTERM, and
SIGKILL after --grace. All signals that end latchctl are passed on to the command.
If latchctl itself is killed with SIGKILL, on Linux the command is killed, too, and
the lock is free when the TTL is over.

The command finds LATCHKIT_KEY and LATCHKIT_FENCE in its environment. A fence grows
with every lease: data that refuses a smaller one is safe from a command that was
stopped and goes on too late.

Exit codes:
  the command's own, or 128 + the number of the signal that ended it
    0  also: with --once, when the work was done already
    1  the lock is not free (as flock; --conflict-exit-code),
       or was lost (as consul lock; --lost-exit-code)
   64  the command line is wrong
   69  Redis does not answer, or refuses
  126  the command cannot be started
  127  there is no such command`,
		Example: `  # at most one at a time; a second one ends at once with exit code 1
  latchctl run nightly-report --no-wait -- ./report --all

  # cron on three machines: the first to come does it, once a day
  latchctl run backup --once 23h -- ./backup

  # wait up to a minute for a deployment to end
  latchctl run deploy:shop --wait 1m -- ./deploy

  # at most three at a time in the whole cluster
  latchctl run transcode --limit 3 -- ffmpeg -i in.mov out.mp4

  # readers share the lock, a writer has it alone
  latchctl run archive --shared -- tar cf - /data`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 || c.ArgsLenAtDash() != 1 {
				return usage("run: give a key, and the command behind --, as in: latchctl run KEY -- COMMAND")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r.rule.Key, r.command, r.messages = args[0], args[1:], c.ErrOrStderr()
			if err := r.check(c, to); err != nil {
				return err
			}
			return r.run(to)
		},
	}
	r.flags(c)
	return c
}

func (r *running) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVarP(&r.noWait, "no-wait", "n", false, "fail at once if the lock is not free")
	f.DurationVarP(&r.wait, "wait", "w", 0, "fail if the lock is not free within this time (default: wait for ever)")
	f.BoolVarP(&r.shared, "shared", "s", false, "take the lock as a reader; readers share it (not on a quorum)")
	f.IntVar(&r.limit, "limit", 0, "let this many commands run at once, as a semaphore (not on a quorum)")
	f.DurationVar(&r.rule.TTL, "ttl", locker.DefaultTTL, "how long after a crash the lock stays locked; the lease is renewed every third of it")
	f.DurationVar(&r.rule.OnceFor, "once", 0, "after the command has succeeded, no call runs it again for this long; such a call does nothing, and its exit code is 0")
	f.DurationVar(&r.rule.KeepFor, "keep-for", 0, "keep the lock for at least this long, so that a quick job does not run again on a machine whose clock is late")
	f.DurationVar(&r.rule.EndAfter, "end-after", 0, "end the command after this long (default: no bound)")
	f.StringVar(&r.rule.Metadata, "metadata", "", "what others see of the holder (default: COMMAND@HOST:PID)")
	f.DurationVar(&r.grace, "grace", 10*time.Second, "how long a command has to end after SIGTERM when the lock was lost")
	f.IntVarP(&r.conflict, "conflict-exit-code", "E", exitFailed, "exit code when the lock is not free")
	f.IntVar(&r.lost, "lost-exit-code", exitFailed, "exit code when the lock was lost")
	f.DurationVar(&r.longest, "max-ttl", 0, "on a quorum: the longest TTL that any process uses, as WithMaxTTL")
	f.DurationVar(&r.skew, "max-skew", 0, "on a quorum, Sentinel or Cluster: how far the servers' clocks differ, as WithMaxSkew")
}

// check returns an error if the flags contradict each other. It also sets the wait, the mode
// and the metadata of r.rule.
func (r *running) check(c *cobra.Command, to *servers) error {
	switch {
	case r.noWait && c.Flags().Changed("wait"):
		return usage("run: --no-wait and --wait exclude each other")
	case c.Flags().Changed("wait") && r.wait <= 0:
		return usage("run: --wait %v: give a positive time, or --no-wait", r.wait)
	case r.limit < 0 || r.limit > 0 && (r.shared || len(to.urls()) > 1):
		return usage("run: --limit %d: give a positive number, without --shared, and not on a quorum, because a quorum has no semaphores", r.limit)
	case r.shared && len(to.urls()) > 1:
		return usage("run: --shared: a quorum has no readers; leave --shared out, or give one node")
	case r.noWait:
		r.rule.Wait = locker.NoWait
	default:
		r.rule.Wait = r.wait
	}
	if r.shared {
		r.rule.Mode = locker.Shared
	}
	if r.rule.Metadata == "" {
		r.rule.Metadata = self.As(filepath.Base(r.command[0])) // without the arguments, which may be secret
	}
	return nil
}

// run acquires the lock, and runs the command under it.
func (r *running) run(to *servers) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	ctx, interrupt := context.WithCancelCause(context.Background())
	defer interrupt(nil)
	granted := make(chan struct{})
	go func() { // a signal before the grant ends the wait; a signal after the grant goes to the command
		select {
		case s := <-signals:
			interrupt(interruption{s.(syscall.Signal)})
		case <-granted:
		}
	}()
	engine, cs, err := r.locker(ctx, to)
	if err != nil {
		return err
	}
	defer cs.Close()
	defer closeWithin(engine, 3*time.Second)
	if err := locker.Check(engine, r.rule); err != nil {
		return &exitError{exitUsage, err}
	}
	exit := 0
	err = locker.Run(ctx, engine, r.rule, func(ctx context.Context) error {
		close(granted)
		var err error
		if exit, err = r.guard(ctx, signals); err != nil {
			return err
		}
		if exit != 0 {
			return errNotDone
		}
		return nil
	})
	return r.result(ctx, exit, err)
}

// errNotDone is the error that the function under locker.Run returns if the command has failed.
// Because of this error, the work does not count as done.
var errNotDone = errors.New("the command has failed")

// An interruption is the context's cause when a signal has ended the wait for the lock.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return "interrupted: " + i.signal.String() }

// result returns the error for the outcome of a run: exit is the exit code of the command, and err
// is the error of the lock or of the start. The returned error carries the code with which latchctl
// itself exits.
func (r *running) result(ctx context.Context, exit int, err error) error {
	var i interruption
	var cannot *startError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &cannot):
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return &exitError{exitNoCommand, cannot}
		}
		return &exitError{exitCannotRun, cannot}
	case errors.Is(err, locker.ErrDone):
		fmt.Fprintf(r.messages, "latchctl: %s is done already, so the command did not run\n", printable(r.rule.Key))
		return nil
	case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrExpired):
		if r.lossReported {
			err = nil
		}
		return &exitError{r.lost, err}
	case errors.Is(err, errNotDone):
		return &exitError{code: exit} // nothing is printed here, because the command has printed its own error
	case errors.As(context.Cause(ctx), &i):
		return &exitError{128 + int(i.signal), i}
	case errors.Is(err, locker.ErrBusy):
		return &exitError{r.conflict, err}
	case errors.Is(err, locker.ErrUnavailable):
		return &exitError{exitUnavailable, err}
	case errors.Is(err, locker.ErrInvalidKey), errors.Is(err, locker.ErrInvalidRule), errors.Is(err, locker.ErrUnsupported):
		return &exitError{exitUsage, err}
	}
	return err
}

// locker makes the Locker that the flags describe.
func (r *running) locker(ctx context.Context, to *servers) (*locker.Engine, clients, error) {
	asking, cancel := to.bound(ctx)
	defer cancel()
	cs, err := to.connect(asking)
	if err != nil {
		return nil, nil, err
	}
	var opts []locker.Option
	if r.longest > 0 {
		opts = append(opts, locker.WithMaxTTL(r.longest), locker.WithTTL(r.rule.TTL)) // the default TTL may be longer
	}
	if r.skew > 0 {
		opts = append(opts, locker.WithMaxSkew(r.skew))
	}
	both := locker.WithOptions(opts...)
	var l *locker.Engine
	switch {
	case r.limit > 0:
		l, err = locker.NewSemaphore(cs[0], r.limit, both)
	case r.shared:
		l, err = locker.NewReadWrite(cs[0], both)
	case len(cs) > 1:
		l, err = locker.NewRedlock(cs.forLocker(), both)
	default:
		l, err = locker.New(cs[0], both)
	}
	if err != nil {
		cs.Close()
		return nil, nil, &exitError{exitUsage, err}
	}
	return l, cs, nil
}

// closeWithin closes l. It waits for the undo of an acquire that has failed, but no longer than
// bound. If the undo is not confirmed in that time, the lease ends by its TTL.
func closeWithin(l *locker.Engine, bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	_ = l.Close(ctx) // the error does not matter, because the lease then ends by its TTL
}
