package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

func newDoctor(to *servers) *cobra.Command {
	var d doctor
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether the servers are fit for locks, and what to do where they are not",
		Long: `doctor examines every server: all masters of a Cluster, all nodes of a quorum.

  ok    nothing to do
  hint  nothing is broken; know this, or change it
  bad   locks can be lost, or cannot be taken: do what the line says

It checks version, role, eviction, memory, persistence, replicas, the rights of the
user (ACL), the clock, the votes of a quorum, keys without a TTL, and what dead
processes left behind. It locks a throw-away key, whose name begins with --key, and
lets a second caller wait for it. Apart from this key it reads only. On a quorum it
locks no key, but lets nodes vote again whose time has come, as every service does.

Exit codes: 0 nothing is bad, 1 something is bad, 69 no server answers.`,
		Example: `  latchctl doctor
  latchctl doctor --user locks --key order:42    may this user lock that key?
  latchctl doctor --json | jq 'select(.level == "bad")'`,
		Args: exactly(0, "no argument"),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := to.bound(c.Context())
			defer cancel()
			cs, err := to.connect(ctx)
			if err != nil {
				return err
			}
			defer cs.Close()
			d.several = len(cs) > 1
			// half of the time is for the checks of each server alone; the other half is for
			// checks of all servers together
			if d.several {
				d.patience = to.timeout / time.Duration(2*len(cs))
			}
			if err := d.examine(ctx, cs); err != nil {
				return overdue(ctx, err)
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), d.findings, func(f finding) finding { return f })
			} else {
				d.print(c.OutOrStdout())
			}
			if err == nil && slices.ContainsFunc(d.findings, func(f finding) bool { return f.Level == bad }) {
				return &exitError{code: exitFailed}
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print a JSON object for each finding, one on a line")
	f.StringVar(&d.user, "user", "", "check the rights of this user (default: the one of the URL)")
	f.StringVar(&d.key, "key", "latchctl:doctor", "a key that the user must be allowed to lock")
	f.DurationVar(&d.skew, "max-skew", 500*time.Millisecond, "how far the clocks of the servers may differ, as WithMaxSkew")
	return c
}

// level is the severity of a finding.
type level string

const (
	okay level = "ok"
	hint level = "hint"
	bad  level = "bad"
)

// finding is one line that doctor prints.
type finding struct {
	Server string `json:"server"`
	Level  level  `json:"level"`
	Check  string `json:"check"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}

// doctor examines the servers, and collects its findings.
type doctor struct {
	user, key string
	skew      time.Duration
	several   bool          // the servers are a quorum
	patience  time.Duration // time-out for each server; 0: only the whole command has a time-out
	findings  []finding
	// for each server: how far its clock is ahead of this machine's clock
	clocks []time.Duration
}

// patient is one server under examination.
type patient struct {
	*doctor
	name   string
	client redis.UniversalClient // a client of this server alone
	info   map[string]string     // the fields of INFO
}

// report adds a finding about this server.
func (p *patient) report(l level, check, text, advice string) {
	p.findings = append(p.findings, finding{p.name, l, check, text, advice})
}

// reportAll adds a finding about all servers together.
func (d *doctor) reportAll(l level, check, text, advice string) {
	d.findings = append(d.findings, finding{"all", l, check, text, advice})
}

// listed adds the finding that there are these keys, if there are any. text begins with their
// number.
func listed(report func(l level, check, text, advice string), l level, check string, keys []string, text, advice string) {
	const most = 5 // the largest number of keys that are named
	if len(keys) == 0 {
		return
	}
	named, more := keys, ""
	if len(keys) > most {
		named, more = keys[:most], ", …"
	}
	report(l, check, fmt.Sprintf("%d %s: %s%s", len(keys), text, strings.Join(named, ", "), more), advice)
}

// examine looks at all servers. It returns an error when no server answers.
func (d *doctor) examine(ctx context.Context, cs clients) error {
	answered := 0
	var last error
	visit := func(ctx context.Context, name string, c redis.UniversalClient) {
		ctx, cancel := d.bound(ctx)
		defer cancel()
		p := &patient{doctor: d, name: name, client: c}
		if err := p.greet(ctx); err != nil {
			last = err
			if p.patience > 0 && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("no reply within %v", p.patience)
			}
			p.report(bad, "reachable", "it does not answer: "+err.Error(), "start it, or correct --node, the password or the firewall")
			return
		}
		answered++
		for _, check := range []func(context.Context){
			p.version, p.role, p.eviction, p.persistence, p.replicas, p.rights, p.leftovers,
		} {
			check(ctx)
		}
	}
	for _, c := range cs {
		before := answered
		if cluster, ok := c.(*redis.ClusterClient); ok {
			d.cluster(ctx, cluster, visit)
		} else {
			visit(ctx, address(c), c)
		}
		if answered > before && !d.several { // no plain lock on the nodes of a quorum: they vote
			d.probe(ctx, address(c), c)
		}
	}
	if answered == 0 {
		if last == nil {
			last = errors.New("the URL leads to no server")
		}
		return &exitError{exitUnavailable, fmt.Errorf("no server answers: %w", last)}
	}
	d.compareClocks()
	if d.several {
		d.votes(ctx, cs)
	}
	d.waiters(ctx, cs)
	return nil
}

// bound returns a context with the time-out for the calls to one server.
func (d *doctor) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.patience <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.patience)
}

// address returns the address of the server that c uses, or "server" if c is not a client of one
// server.
func address(c redis.UniversalClient) string {
	if one, ok := c.(*redis.Client); ok {
		return one.Options().Addr
	}
	return "server"
}

// print writes each finding with its advice to w, as text.
func (d *doctor) print(w io.Writer) {
	server := ""
	for _, f := range d.findings {
		if f.Server != server {
			server = f.Server
			fmt.Fprintf(w, "%s\n", printable(server))
		}
		fmt.Fprintf(w, "  %-4s  %-11s  %s\n", f.Level, f.Check, printable(f.Text))
		if f.Advice != "" {
			fmt.Fprintf(w, "  %-4s  %-11s  → %s\n", "", "", printable(f.Advice))
		}
	}
}
