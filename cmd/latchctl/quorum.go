package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/locker"
)

func newEnroll(to *servers) *cobra.Command {
	var yes bool
	var longest, skew time.Duration
	c := &cobra.Command{
		Use:   "enroll",
		Short: "Make a quorum of new servers, or change the longest TTL of a quorum",
		Long: `enroll declares that the servers are new and hold no leases, so that they vote at
once (locker.EnrollRedlock). Run it once, when they are installed, and never at each
start of a service: servers that have lost their data look like new ones, and enroll
would hide the loss. Without enroll, new servers vote after one minute, or after the
WithMaxTTL of the first process, by themselves.

If all servers are nodes that vote, enroll --max-ttl changes their longest TTL. From then
on processes with another WithMaxTTL are refused. Restart no server until the last of
these processes has ended, and its longest lease is over.

enroll looks at each server first. It refuses servers that hold leases, and servers that
were nodes before. All servers must answer. Give the options --max-ttl and --max-skew that
the services use.`,
		Example: `  latchctl enroll --node redis://a:6379 --node redis://b:6379 --node redis://c:6379`,
		Args:    exactly(0, "the servers with --node, and no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			question := fmt.Sprintf("Make one quorum of these %d servers, which have never held leases, or change its longest TTL? [y/N] ", len(to.urls()))
			if err := agree(c, yes, question); err != nil {
				return err
			}
			ctx, cancel := to.bound(c.Root().Context())
			defer cancel()
			cs, err := to.connect(ctx)
			if err != nil {
				return err
			}
			defer cs.Close()
			var opts []locker.QuorumOption
			if longest > 0 {
				opts = append(opts, locker.WithMaxTTL(longest), locker.WithTTL(min(longest, locker.DefaultTTL)))
			}
			if skew > 0 {
				opts = append(opts, locker.WithMaxSkew(skew))
			}
			err = locker.EnrollRedlock(ctx, cs.forLocker(), opts...)
			switch {
			case errors.Is(err, locker.ErrQuorum) || ctx.Err() != nil:
				return overdue(ctx, err)
			case err != nil: // the list of servers, or an option, is wrong
				return &exitError{exitUsage, err}
			}
			fmt.Fprintf(c.OutOrStdout(), "enrolled: all %d servers vote\n", len(cs))
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().DurationVar(&longest, "max-ttl", 0, "the longest TTL that any process uses, as WithMaxTTL")
	c.Flags().DurationVar(&skew, "max-skew", 0, "how far the servers' clocks differ, as WithMaxSkew")
	return c
}

// agree asks the operator the question, unless yes says that the answer is known.
func agree(c *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	return ask(c, question, "nothing was changed")
}

// mostCounterLead is the largest time by which a fence counter may be ahead of the clock.
// Fences follow the clock, and a streak reserves fences for the next 100 ms. The rest of the
// two seconds is a margin for a clock that is set back.
const mostCounterLead = 2 * time.Second

func newRaiseFence(to *servers) *cobra.Command {
	var above uint64
	var ahead, yes bool
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
		Example: `  latchctl raise-fence order:42 --above 1790000000000001 --ahead`,
		Args:    exactly(1, "one key"),
	}
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
			if err := agree(c, yes, fmt.Sprintf("\nMake the next fence of %s larger than %d? This cannot be undone. [y/N] ", printable(args[0]), above)); err != nil {
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
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}
