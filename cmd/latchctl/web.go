package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/latchkit/latchkit/internal/page"
)

func newWeb(to *servers) *cobra.Command {
	var listen string
	var hosts []string
	w := web{to: to, pattern: "*", locks: map[string]lock{}, seen: map[string]sighting{}}
	c := &cobra.Command{
		Use:   "web [PATTERN]",
		Short: "Show the locks on a page in a browser, with the history of the last minutes",
		Long: `web serves a page on this machine, and looks at the locks for as long as it runs. The
page shows the keys with the most waiters first, their holders and what is left of their
leases, and for a chosen key its queue in order. Lanes show the last minutes of the
busiest keys. The history is sampled: a hold that is shorter than --every may be missing.

The page changes nothing. It shows the latchctl break line to copy. It has no tokens, and
no keys but those that match PATTERN.

The cost on the server is bounded, however many browsers watch: --rate commands a second,
and a walk over all keys (SCAN, TYPE, GETRANGE), after which web pauses for ten times what
it took. A look at 10000 locked keys takes 20 seconds at the default rate; the busiest
keys are looked at every second.

The page listens on this machine only, unless --listen says otherwise. It asks for no
password, so put it behind a proxy that does, and name the proxy's host with --host.`,
		Example: `  latchctl web
  latchctl web 'order:*' --listen 127.0.0.1:9000`,
		Args: onePattern,
		RunE: func(c *cobra.Command, args []string) error {
			if w.every <= 0 || w.rate < 1 {
				return usage("web: --every %v, --rate %d: give positive values", w.every, w.rate)
			}
			if len(args) > 0 {
				w.pattern = args[0]
			}
			return w.run(c, listen, hosts)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:7320", "the address of the page; port 0 takes a free one")
	c.Flags().StringArrayVar(&hosts, "host", nil, "a name of this server besides localhost; repeat it")
	c.Flags().DurationVar(&w.every, "every", time.Second, "the pause between two looks at the busiest keys")
	c.Flags().IntVar(&w.rate, "rate", 500, "how many keys a second are looked at, at most")
	return c
}

const (
	webLanes = 6   // the busiest keys, which have lanes
	webRows  = 200 // keys that the table shows at once
	webQueue = 200 // waiters of a key that the page shows at once
)

// web is the state of the command web.
type web struct {
	to      *servers
	pattern string
	every   time.Duration
	rate    int
	limit   *rate.Limiter // of the commands; who has left needs no place in its line
	l       *looker
	page    *page.Page

	mu      sync.Mutex
	locks   map[string]lock // as they were looked at last
	looked  time.Time       // when the last look at all keys ended
	longest time.Duration   // for which somebody waits for one of the busiest keys
	problem error
	since   time.Time // of the problem
	seen    map[string]sighting
	lanes   []string
	details map[string]detail
}

func (w *web) run(c *cobra.Command, listen string, hosts []string) error {
	ctx, cancel := w.to.bound(c.Context())
	l, err := w.to.look(ctx)
	cancel()
	if err != nil {
		return err
	}
	defer l.close()
	w.l, w.details = l, map[string]detail{}
	w.limit = rate.NewLimiter(rate.Limit(w.rate)/rate.Limit(max(1, len(l.clients))), 1)
	w.page = page.New(page.Config{
		Title: "Locks", Lead: "A read-only view of the keys that match " + printable(w.pattern) + ".",
		Window: 5 * time.Minute, Lanes: webLanes, Keys: true, Hosts: hosts,
	})
	w.page.JSON("/keys", w.table)
	w.page.JSON("/key", w.detail)
	w.summary()
	ctx, cancel = context.WithCancel(c.Context())
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() { w.lookAtAll(ctx) })
	looks.Go(func() { w.lookAtBusy(ctx) })
	return w.page.Serve(ctx, listen, func(url string) {
		fmt.Fprintln(c.OutOrStdout(), url)
	})
}

// pace waits until the servers may get another command.
func (w *web) pace(ctx context.Context) error { return w.limit.Wait(ctx) }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inspect looks at one key, at its turn.
func (w *web) inspect(ctx context.Context, key string) (lock, error) {
	if err := w.pace(ctx); err != nil {
		return lock{}, err
	}
	ctx, cancel := w.to.bound(ctx)
	defer cancel()
	found, err := w.l.inspect(ctx, key)
	return found, overdue(ctx, err)
}

// lookAtAll looks at all keys again and again.
func (w *web) lookAtAll(ctx context.Context) {
	for ctx.Err() == nil {
		scanned, err := w.sweep(ctx)
		w.mu.Lock()
		if err == nil {
			w.looked = time.Now()
		}
		w.mu.Unlock()
		w.report(ctx, err)
		if err != nil {
			scanned = 0 // it waited for servers that do not answer
		}
		_ = pause(ctx, max(w.every, 10*scanned)) // the loop ends with ctx
	}
}

// sweep looks at all keys once. It returns how long the walk over the keys took.
func (w *web) sweep(ctx context.Context) (scanned time.Duration, err error) {
	start := time.Now()
	bounded, cancel := w.to.bound(ctx)
	keys, err := w.l.engine.Keys(bounded, w.pattern)
	err = overdue(bounded, err)
	cancel()
	scanned = time.Since(start)
	if err != nil {
		return scanned, err
	}
	listed := make(map[string]bool, len(keys))
	for _, key := range keys {
		listed[key] = true
	}
	w.mu.Lock()
	for key := range w.locks {
		if !listed[key] {
			delete(w.locks, key)
		}
	}
	w.mu.Unlock()
	// Several looks are on their way at once, so that the rate and not the distance to the server
	// decides how long this takes.
	var work sync.WaitGroup
	errs, places := make([]error, min(16, len(keys))), make(chan string)
	for i := range errs {
		work.Go(func() {
			for key := range places {
				if errs[i] != nil {
					continue // drains, so that the sender is not left waiting
				}
				var found lock
				if found, errs[i] = w.inspect(ctx, key); errs[i] == nil {
					w.keep(found)
				}
			}
		})
	}
	shown := time.Now()
	for _, key := range keys {
		places <- key
		if time.Since(shown) > 2*time.Second {
			shown = time.Now()
			w.summary()
		}
	}
	close(places)
	work.Wait()
	return scanned, errors.Join(errs...)
}

func (w *web) keep(found lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found.Held || found.Waiters > 0 {
		w.locks[found.key] = found
	} else {
		delete(w.locks, found.key)
	}
}

// report tells the page whether the servers answer.
func (w *web) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	if err != nil && w.problem == nil {
		w.since = time.Now()
	}
	w.problem = err
	note := ""
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		note = fmt.Sprintf("Since %s the servers do not answer, and the page shows what was before: %s", w.since.Format(time.TimeOnly), printable(text))
	}
	w.mu.Unlock()
	w.page.Set("note", note)
	w.summary()
}

// summary shows the figures of all keys, and makes browsers get the table.
func (w *web) summary() {
	w.mu.Lock()
	held, waiters := 0, 0
	for _, l := range w.locks {
		if l.Held {
			held++
		}
		waiters += l.Waiters
	}
	looked, longest := "not yet", "-"
	if !w.looked.IsZero() {
		looked = w.looked.Format(time.TimeOnly)
	}
	if w.longest > 0 {
		longest = span(w.longest)
	}
	facts := []page.Fact{
		{Name: "held", Value: strconv.Itoa(held)}, {Name: "waiters", Value: strconv.Itoa(waiters)},
		{Name: "longest wait", Value: longest}, {Name: "last full scan", Value: looked},
	}
	w.mu.Unlock()
	w.page.Set("cards", []page.Card{{Title: "Now", Facts: facts}})
	w.page.Set("keys", time.Now().UnixMilli())
}
