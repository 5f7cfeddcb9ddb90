package lead

import (
	"fmt"
	"log/slog"
	"time"
)

// An Option sets up a [Leader].
type Option func(*config)

// config holds the values that the options set.
type config struct {
	grace   time.Duration
	overrun func(Overrun)
	logger  *slog.Logger
}

// configure applies the options. ttl is the TTL of a term.
func configure(opts []Option, ttl time.Duration) (config, error) {
	c := config{grace: ttl, logger: slog.Default()}
	for _, o := range opts {
		o(&c)
	}
	if c.grace < time.Millisecond || c.grace > longestGrace {
		return c, fmt.Errorf("WithGrace(%v); give 1ms to %v, or leave it out for the TTL", c.grace, longestGrace)
	}
	return c, nil
}

// longestGrace is the longest time that a Rule may have, too, so that sums of both do not wrap
// around.
const longestGrace = 10 * 365 * 24 * time.Hour

// WithGrace sets how long fn may run after the end of its term, before the Leader reports an
// [Overrun]. Default: the TTL.
func WithGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithOnOverrun makes the Leader call f if fn still runs when its term has ended and then the time
// of [WithGrace] has passed. f is called again after each further TTL. If the data does not
// check fences, the program can end itself in f. f must return soon, because Run waits for f.
func WithOnOverrun(f func(Overrun)) Option { return func(c *config) { c.overrun = f } }

// WithLogger sets the logger for the beginning and the end of each term, for outages of the lock
// server, and for overruns. Default: slog.Default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }
