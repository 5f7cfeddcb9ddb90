package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// doctorKey is the beginning of the throw-away key, unless the operator gives another one.
const doctorKey = "latchctl:doctor"

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

It checks the settings with which a server loses locks: version, role, eviction,
persistence, replicas, clock. It locks a throw-away key, whose name begins with --key,
as services do, and lets a second caller wait for it. On a quorum it locks no key, and
says which nodes vote. It finds locks that never end. Apart from the throw-away key it
reads only.

To learn what the user of a service may do, give the user's URL and a key of the service.

Exit codes: 0 nothing is bad, 1 something is bad, 69 no server answers.`,
		Example: `  latchctl doctor
  latchctl doctor --node redis://locks:secret@host:6379 --key order:42
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
			if len(cs) > 1 { // the other half of the time is for the checks of all servers together
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
	f.StringVar(&d.key, "key", doctorKey, "lock a key whose name begins with this")
	f.DurationVar(&d.skew, "max-skew", 500*time.Millisecond, "how far the clocks of a quorum may differ, as WithMaxSkew")
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
	key      string
	skew     time.Duration
	patience time.Duration // time-out for each server; 0: only the whole command has a time-out
	findings []finding
}

// report adds a finding about a server, or about "all" servers together.
func (d *doctor) report(server string, l level, check, text, advice string) {
	d.findings = append(d.findings, finding{server, l, check, text, advice})
}

// examine looks at all servers. It returns an error when no server answers.
func (d *doctor) examine(ctx context.Context, cs clients) error {
	answered, silent := 0, errors.New("the URL leads to no server")
	var one sync.Mutex // the masters of a Cluster are visited from several goroutines
	visit := func(ctx context.Context, c *redis.Client) {
		one.Lock()
		defer one.Unlock()
		if d.patience > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d.patience)
			defer cancel()
		}
		ahead, err := clockOf(ctx, c)
		if redis.IsPermissionError(err) { // a refusal also shows that the server answers
			ahead, err = 0, nil
		}
		if err != nil {
			silent = err
			d.report(addressOf(ctx, c), bad, "reachable", "it does not answer: "+err.Error(), "start it, or correct --node, the password or the firewall")
			return
		}
		answered++
		d.settings(ctx, c, ahead)
	}
	for _, c := range cs {
		switch c := c.(type) {
		case *redis.Client:
			visit(ctx, c)
		case *redis.ClusterClient:
			err := c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error { visit(ctx, m); return nil })
			if err != nil {
				silent = err
				d.report("all", bad, "cluster", "its masters cannot be found: "+err.Error(), "start the Cluster; redis-cli --cluster check")
			}
		}
	}
	if answered == 0 {
		return &exitError{exitUnavailable, fmt.Errorf("no server answers: %w", silent)}
	}
	if len(cs) > 1 { // no plain lock on the nodes of a quorum: they vote
		d.votes(ctx, cs)
	} else {
		d.probe(ctx, cs[0])
	}
	d.leftovers(ctx, cs)
	return nil
}

// addressOf returns the address of c's server. Behind Sentinels, the master names it.
func addressOf(ctx context.Context, c *redis.Client) string {
	addr := c.Options().Addr
	if addr == "FailoverClient" {
		if info, err := c.ClientInfo(ctx).Result(); err == nil {
			return info.LAddr
		}
	}
	return addr
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
