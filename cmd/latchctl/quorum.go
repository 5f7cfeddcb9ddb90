package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// change is what the commands that change servers have in common: they look first, say what they
// would do, and ask.
type change struct {
	to            *servers
	dryRun, yes   bool
	longest, skew time.Duration
}

func (ch *change) flags(c *cobra.Command) {
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "look, say what would be done, and change nothing")
	c.Flags().BoolVar(&ch.yes, "yes", false, "do not ask")
}

func (ch *change) quorumFlags(c *cobra.Command) {
	ch.flags(c)
	c.Flags().DurationVar(&ch.longest, "max-ttl", 0, "the longest TTL that any process uses, as WithMaxTTL")
	c.Flags().DurationVar(&ch.skew, "max-skew", 0, "how far the servers' clocks differ, as WithMaxSkew")
}

func (ch *change) options() (opts []locker.QuorumOption) {
	if ch.longest > 0 {
		opts = append(opts, locker.WithMaxTTL(ch.longest), locker.WithTTL(min(ch.longest, locker.DefaultTTL)))
	}
	if ch.skew > 0 {
		opts = append(opts, locker.WithMaxSkew(ch.skew))
	}
	return opts
}

// agreed reports whether the operator wants the change that was just described, with this question.
func (ch *change) agreed(c *cobra.Command, question string) (bool, error) {
	if ch.dryRun {
		fmt.Fprintln(c.OutOrStdout(), "dry run: nothing was changed")
		return false, nil
	}
	if ch.yes {
		return true, nil
	}
	return true, ask(c, question, "nothing was changed")
}

func newEnroll(to *servers) *cobra.Command {
	ch := change{to: to}
	c := &cobra.Command{
		Use:   "enroll",
		Short: "Make a quorum of new servers, once, when they are installed",
		Long: `enroll declares that the servers are new and hold no leases, so that they vote at
once (locker.EnrollRedlock). Run it once, when they are installed, and never at each
start of a service: servers that have lost their data look like new ones, and enroll
would hide the loss. Without enroll, new servers vote after one minute, or after the
longest WithMaxTTL, by themselves.

enroll looks at each server first. It refuses servers that hold leases, and servers
that belong to a set of nodes already. All servers must answer. Give the options
--max-ttl and --max-skew that the services use.`,
		Example: `  latchctl enroll --node redis://a:6379 --node redis://b:6379 --node redis://c:6379 --dry-run
  latchctl enroll --node redis://a:6379 --node redis://b:6379 --node redis://c:6379`,
		Args: exactly(0, "the servers with --node, and no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return ch.onServers(c, func(cs clients, all []surveyed) error {
				var wrong []error
				for _, s := range all {
					if s.member {
						wrong = append(wrong, fmt.Errorf("%s belongs to a set of nodes already; to give it to another set, delete its keys %snode and %sbegun when no process uses the old set", s.name, store.ReservedPrefix, store.ReservedPrefix))
					}
					if len(s.held) > 0 {
						wrong = append(wrong, fmt.Errorf("%s holds %d leases, of %s: it is not new", s.name, len(s.held), printable(strings.Join(s.held[:min(3, len(s.held))], ", "))))
					}
				}
				if len(wrong) > 0 {
					return errors.Join(append(wrong, errors.New("nothing was changed"))...)
				}
				if ok, err := ch.agreed(c, fmt.Sprintf("Make one quorum of these %d servers? They have never held leases. [y/N] ", len(cs))); !ok || err != nil {
					return err
				}
				ctx, cancel := to.bound(c.Root().Context())
				defer cancel()
				if err := locker.EnrollRedlock(ctx, cs.forLocker(), ch.options()...); err != nil {
					return overdue(ctx, err)
				}
				fmt.Fprintf(c.OutOrStdout(), "enrolled: all %d servers vote\n", len(cs))
				return nil
			})
		},
	}
	ch.quorumFlags(c)
	return c
}

func newReplace(to *servers) *cobra.Command {
	ch := change{to: to}
	c := &cobra.Command{
		Use:   "replace",
		Short: "Give the place of one node of a quorum to a new server",
		Long: `replace gives the place of one node to another server, while locks are in use
(locker.ReplaceNode). Name the new list of nodes, with the new server in the place of
the old one. The old server stops voting at once, and leases that need its vote are
soon lost. The new server votes when every lease that the old one granted is over.

replace looks at each server first. It refuses a new server that holds leases, and more
than one new server. All other servers must vote. Give the new list to all processes
before or after, and wait until doctor says that all nodes vote before you replace
another node. The command may be repeated.`,
		Example: `  latchctl replace --node redis://a:6379 --node redis://b:6379 --node redis://new:6379 --dry-run
  latchctl replace --node redis://a:6379 --node redis://b:6379 --node redis://new:6379`,
		Args: exactly(0, "the new list of servers with --node, and no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return ch.onServers(c, func(cs clients, all []surveyed) error {
				var newcomers []string
				for _, s := range all {
					if s.member {
						continue
					}
					if newcomers = append(newcomers, s.name); len(s.held) > 0 {
						return fmt.Errorf("%s holds %d leases, of %s: it is no new server; nothing was changed", s.name, len(s.held), printable(s.held[0]))
					}
				}
				if len(newcomers) > 1 {
					return fmt.Errorf("%s are new: replace one node, wait until all nodes vote, and replace the next; nothing was changed", strings.Join(newcomers, " and "))
				}
				question := "Each of these servers has a place already. Finish the replacement? [y/N] "
				if len(newcomers) == 1 {
					question = "Give a place to " + newcomers[0] + "? The server that is not in this list stops voting at once. [y/N] "
				}
				if ok, err := ch.agreed(c, question); !ok || err != nil {
					return err
				}
				ctx, cancel := to.bound(c.Root().Context())
				defer cancel()
				votesIn, err := locker.ReplaceNode(ctx, cs.forLocker(), ch.options()...)
				if err != nil {
					return overdue(ctx, err)
				}
				fmt.Fprintf(c.OutOrStdout(), "replaced: all nodes vote in %v; give the new list to all processes\n", votesIn.Round(time.Second))
				return nil
			})
		},
	}
	ch.quorumFlags(c)
	return c
}

// mostCounterLead is the largest time by which a fence counter may be ahead of the clock.
// Fences follow the clock, and a streak reserves fences for the next 100 ms. The rest of the
// two seconds is a margin for a clock that is set back.
const mostCounterLead = 2 * time.Second

func newRaiseFence(to *servers) *cobra.Command {
	ch := change{to: to}
	var above uint64
	c := &cobra.Command{
		Use:   "raise-fence KEY --above F",
		Short: "Let the fences of a key continue above those of the database",
		Long: `raise-fence makes the next fence of KEY larger than F (Engine.RaiseFence). It repairs a
server that has lost its counters, when the database remembers a larger fence and
refuses every new holder. Take F from the database: it is the largest fence there.

raise-fence never lowers a fence, and no command does: a number that is too large stays.
So it refuses a fence that is ahead of the server's clock, unless --ahead is given. After a
loss of data on a server whose clock is behind, --ahead is right; otherwise the number is
mistyped.`,
		Example: `  latchctl raise-fence order:42 --above 1790000000000001 --ahead --dry-run
  latchctl raise-fence order:42 --above 1790000000000001 --ahead`,
		Args: exactly(1, "one key"),
	}
	var ahead bool
	c.RunE = func(c *cobra.Command, args []string) error {
		if above == 0 {
			return usage("raise-fence: give --above, the largest fence of the key that the database has")
		}
		return to.withLooker(c, func(l *looker) error {
			seen, err := l.inspect(c.Context(), args[0])
			if err != nil {
				return err
			}
			limit := uint64(time.Now().Add(l.clockOffset + mostCounterLead).UnixMicro())
			if above > limit && !ahead {
				return fmt.Errorf("fence %d is ahead of the server's clock, whose fences are at %d: either it is mistyped, or the clock is behind; check the number against the error of the database, because it cannot be taken back, and then give --ahead; nothing was changed", above, limit)
			}
			if err := showText(c.OutOrStdout(), seen, nil); err != nil {
				return err
			}
			if ok, err := ch.agreed(c, fmt.Sprintf("\nMake the next fence of %s larger than %d? This cannot be undone. [y/N] ", printable(args[0]), above)); !ok || err != nil {
				return err
			}
			ctx, cancel := to.bound(c.Root().Context())
			defer cancel()
			if err := l.engine.RaiseFence(ctx, args[0], above); err != nil {
				return overdue(ctx, err)
			}
			fmt.Fprintf(c.OutOrStdout(), "raised: the next fence of %s is larger than %d\n", printable(args[0]), above)
			return nil
		})
	}
	c.Flags().Uint64Var(&above, "above", 0, "the largest fence of the key that the database has")
	c.Flags().BoolVar(&ahead, "ahead", false, "also raise a fence above the server's clock")
	ch.flags(c)
	return c
}

// surveyed is what a command found at one server before it changes anything.
type surveyed struct {
	name   string
	member bool     // the server belongs to a set of nodes
	held   []string // the keys of its leases
}

// onServers connects to the servers, looks at each of them, prints what it found, and calls do.
func (ch *change) onServers(c *cobra.Command, do func(clients, []surveyed) error) error {
	ctx, cancel := ch.to.bound(c.Context())
	defer cancel()
	cs, err := ch.to.connect(ctx)
	if err != nil {
		return err
	}
	defer cs.Close()
	l, err := locker.NewRedlock(cs.forLocker(), ch.options()...) // checks the list, and asks no server
	if err != nil {
		return &exitError{exitUsage, err}
	}
	closeWithin(l, time.Second)
	var all []surveyed
	for i, client := range cs {
		s := surveyed{name: withoutPassword(ch.to.urls()[i])}
		if err := s.look(ctx, clients{client}); err != nil {
			return overdue(ctx, fmt.Errorf("%s: %w", s.name, err))
		}
		all = append(all, s)
	}
	if err := printSurvey(c.OutOrStdout(), all); err != nil {
		return err
	}
	return do(cs, all)
}

// look reads whether the server belongs to a set of nodes, and which leases it has. It writes
// nothing.
func (s *surveyed) look(ctx context.Context, c clients) error {
	for _, marker := range []string{"node*", "begun*"} {
		if err := scan(ctx, c[0], store.ReservedPrefix+marker, "", func(string) { s.member = true }); err != nil {
			return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
		}
	}
	l, err := c.look(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	locks, err := l.all(ctx, "*")
	for _, lock := range locks {
		if lock.Held && !lock.Foreign {
			s.held = append(s.held, lock.key)
		}
	}
	return err
}

func printSurvey(w io.Writer, all []surveyed) error {
	rows := [][]string{{"SERVER", "MEMBER OF A SET", "LEASES"}}
	for _, s := range all {
		member := "no"
		if s.member {
			member = "yes"
		}
		rows = append(rows, []string{printable(s.name), member, fmt.Sprint(len(s.held))})
	}
	_, err := io.WriteString(w, grid(rows))
	return err
}
