package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func newBreak(to *servers) *cobra.Command {
	var fence uint64
	var reason string
	var yes bool
	c := &cobra.Command{
		Use:   "break KEY --fence F --reason TEXT",
		Short: "Take a lease away from its holder",
		Long: `break takes the lease away from the holder with that fence, and the next waiter gets
the key at once. It asks before it does so, unless --yes is given.

The holder learns of it at its next renewal, within 37 % of its TTL, and its
context ends with the reason (locker.ErrRevoked). Until then it may go on working,
beside the next holder: only data that checks the fence refuses it. So break a lock
when its holder is gone, or does harm, and not because it is slow.

If the holder has another fence, nothing happens; ls and show print its fence.
Readers share a fence, and lose their leases together. A key that another library
holds has no fence; docs/operations.md has a script that removes it if it has not
changed meanwhile.`,
		Example: `  latchctl show order:42
  latchctl break order:42 --fence 1790000000000001 --reason 'node lost, see the incident'`,
		Args: exactly(1, "one key"),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return usage("break: give --reason; the error and the log of the holder show the reason")
			}
			return to.withLooker(c, func(l *looker) error {
				seen, err := l.inspect(c.Context(), args[0])
				if err != nil {
					return err
				}
				if err := checkBreakable(seen, fence, c.Flags().Changed("fence")); err != nil {
					return err
				}
				if !yes {
					if err := confirm(c, seen, fence); err != nil {
						return err
					}
				}
				// The requests get a new time-out here, because the operator may have taken longer
				// than --timeout to answer.
				ctx, cancel := to.bound(c.Root().Context())
				defer cancel()
				engine := l.engine
				if len(seen.Permits) > 0 {
					engine = l.permits
				}
				if err := engine.Revoke(ctx, args[0], fence, reason); err != nil {
					return overdue(ctx, err)
				}
				fmt.Fprintf(c.OutOrStdout(), "broken: fence %d does not hold %s any more\n", fence, printable(args[0]))
				return nil
			})
		},
	}
	c.Flags().Uint64Var(&fence, "fence", 0, "the fence of the holder, as ls and show print it")
	c.Flags().StringVar(&reason, "reason", "", "why; the error of the holder shows the reason, so give no secrets")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// checkBreakable returns an error with the reason if break must not revoke a lease of the lock l.
// fence is the fence that the user has named; fenceGiven is false if the user has named none.
func checkBreakable(l lock, fence uint64, fenceGiven bool) error {
	switch {
	case !l.Held:
		return fmt.Errorf("nobody holds %s", l.key)
	case l.Foreign:
		return fmt.Errorf("%s is held by another library or program, which has no fence; if that holder is gone, remove the key with the script under \"A foreign key without a TTL\" in docs/operations.md", l.key)
	case !fenceGiven && len(l.Permits) > 0:
		return usage("break: give the fence of the permit that you mean; latchctl show %s lists the permits", l.key)
	case !fenceGiven:
		return usage("break: give the fence of the holder that you mean; now it is --fence %d (%s, %s left)", l.Fence, orDash(l.Metadata), l.remaining())
	case len(l.Permits) > 0 && !l.hasPermit(fence):
		return fmt.Errorf("%w: no permit of %s has fence %d; show lists the permits", locker.ErrGone, l.key, fence)
	case len(l.Permits) > 0:
		return nil
	case fence < l.Fence:
		return fmt.Errorf("%w: %s is held with fence %d, not %d", locker.ErrGone, l.key, l.Fence, fence)
	}
	return nil
}

// hasPermit reports whether the key has a permit with the given fence.
func (l lock) hasPermit(fence uint64) bool {
	return slices.ContainsFunc(l.Permits, func(p store.Permit) bool { return p.Fence == fence })
}

// confirm asks the operator at the terminal whether to break the lock l.
func confirm(c *cobra.Command, l lock, fence uint64) error {
	if err := showText(c.OutOrStdout(), l, nil); err != nil {
		return err
	}
	question := "The holder may go on working until it notices. Take its lease away?"
	switch l.state() {
	case "shared":
		question = fmt.Sprintf("The readers may go on until they notice. Take all leases (%d) away?", l.Readers)
	case "permits":
		question = fmt.Sprintf("The holder of fence %d may go on working until it notices. Take its permit away?", fence)
	case "kept":
		question = "Nobody works under this lock. Free it before its time is over?"
	}
	return ask(c, "\n"+question+" [y/N] ", "nothing was broken")
}

// ask asks the operator at the terminal. It returns an error if there is no terminal, and the error
// declined if the operator does not confirm.
func ask(c *cobra.Command, question, declined string) error {
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usage("%s: a confirmation is needed, and there is no terminal; give --yes", c.Name())
	}
	fmt.Fprint(c.OutOrStdout(), question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New(declined)
	}
	return nil
}
