// Latchctl shows the locks of latchkit to operators, and runs commands under locks. It needs only
// the Redis servers of the locks, not the services that use them.
//
//	go install github.com/latchkit/latchkit/cmd/latchctl@latest
//	latchctl --help
//
// Experimental: a minor version may change the output. See "Stability" in the README.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/locker"
)

// The exit codes of latchctl are those of flock(1). If latchctl run has run a command, latchctl
// ends with the exit code of this command.
const (
	exitFailed      = 1  // the lock was not free, or was lost; or doctor has found a defect
	exitUsage       = 64 // EX_USAGE: the command line is wrong
	exitUnavailable = 69 // EX_UNAVAILABLE: the servers do not answer

	// These two are the exit codes of a shell.
	exitCannotRun = 126 // the command is there and cannot be started
	exitNoCommand = 127 // there is no such command
)

func main() {
	redis.SetLogger(silent{}) // go-redis would log errors that the results of the calls contain anyway
	err := newRoot().ExecuteContext(context.Background())
	os.Exit(report(os.Stderr, err))
}

// silent is a logger for go-redis that logs nothing.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// report prints the error err to w, and returns the exit code for it.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	exit := &exitError{code: exitFailed, err: err}
	if !errors.As(err, &exit) && errors.Is(err, locker.ErrUnavailable) {
		exit.code = exitUnavailable
	}
	if exit.err != nil {
		for line := range strings.Lines(exit.err.Error()) {
			fmt.Fprintln(w, "latchctl: "+printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return exit.code
}

// exitError is an error with an exit code of its own. If err is nil, nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage returns the error for a wrong command line.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func newRoot() *cobra.Command {
	var to servers
	root := &cobra.Command{
		Use:   "latchctl",
		Short: "Look at the locks of latchkit, and run commands under them",
		Long: `latchctl asks the Redis servers themselves. So it works while the services that
hold the locks are down, and needs nothing from them.

Name the server with --node, or with LATCHCTL_NODES in the environment, where
other users of the machine do not see its password. In LATCHCTL_NODES, spaces
separate the nodes of a quorum: LATCHCTL_NODES='redis://a:6379 redis://b:6379 …'

  one server     --node redis://user:password@localhost:6379/0     (rediss:// for TLS)
  Sentinel       --node 'redis://sentinel1:26379?master_name=locks&addr=sentinel2:26379'
  Cluster        --node redis://any-node:7000                      (it finds the others)
  a quorum       --node redis://a:6379 --node redis://b:6379 --node redis://c:6379

Keys are written as they are on the server, with the prefix that a service may
have set. A token, which proves that a holder is the holder, is never shown.`,
		Example: `  latchctl ls                                   what is locked, by whom, who waits
  latchctl show order:42                        one lock, and its queue in order
  watch latchctl ls --sort waiters              the same, live
  latchctl web                                  the same on a page, with the last minutes
  latchctl break order:42 --fence 1790000000000001 --reason 'pod is gone'
  latchctl doctor                               is this server fit for locks?
  latchctl run nightly-report -n -- ./report    a cron job that runs once at a time`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("there is no command %q; latchctl --help lists them", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w; %s --help explains the flags", err, c.CommandPath())
	})
	to.flags(root.PersistentFlags())
	root.AddCommand(newLs(&to), newShow(&to), newBreak(&to), newWeb(&to), newDoctor(&to), newRun(&to),
		newEnroll(&to), newRaiseFence(&to))
	return root
}

// version returns the module's version that go install has recorded.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// exactly requires n arguments, as cobra.ExactArgs does, but its error has the exit code
// exitUsage. The parameter what describes the arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%s: give %s; %s --help shows how", c.Name(), what, c.CommandPath())
		}
		return nil
	}
}

// onePattern allows one argument or none.
func onePattern(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("%s: give one pattern at most, in quotes, so that the shell does not replace it; %s --help shows how", c.Name(), c.CommandPath())
	}
	return nil
}
