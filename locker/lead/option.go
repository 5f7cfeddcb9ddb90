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
	grace  time.Duration
	logger *slog.Logger
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

// WithGrace sets how long fn may run after the end of its term, before the Leader logs an error, and
// the Locker's Observer gets the operation "overrun": both again after each further TTL. Default: the
// TTL.
func WithGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithLogger sets the logger for the beginning and the end of each term, for outages of the lock
// server, and for overruns. Default: slog.Default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }
