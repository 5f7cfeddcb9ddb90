package otellock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.34.0"
	"go.opentelemetry.io/otel/trace"
)

// An Option sets up the Observer that [New] returns.
type Option func(*config)

// config has the values of the options. newConfig has their defaults.
type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider

	logger *slog.Logger // nil: slog's default

	holdSpans bool
	key       bool
	links     bool
	salt      []byte

	serverAttributes []attribute.KeyValue // of every span and every measurement
	metricAttributes func(context.Context) []attribute.KeyValue

	refused error // the errors of wrong options
}

func newConfig(opts []Option) (config, error) {
	c := config{links: true, salt: []byte(rand.Text())}
	for _, o := range opts {
		o(&c)
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	return c, c.refused
}

// WithTracerProvider sets the provider that makes the spans. Default, also for nil:
// otel.GetTracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithMeterProvider sets the provider that makes the instruments. Default, also for nil:
// otel.GetMeterProvider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithHoldSpans adds a span "hold NAME" around the work under the lock. Default: no such span, and
// the work's spans are children of the caller's span.
func WithHoldSpans() Option { return func(c *config) { c.holdSpans = true } }

// WithKey adds the key to the spans and logs, as latchkit.lock.key. Keys often name customers, and
// all readers of the traces can see these names. Metrics never have the key. Default: only a salted
// hash of the key is exported, see [WithKeySalt].
func WithKey() Option { return func(c *config) { c.key = true } }

// WithServer names the lock server of this Observer, in every span and every measurement: the
// attribute server.address, and server.port unless port is 0, as OpenTelemetry's conventions for
// databases name them. address is the host of one server, or your name for a Sentinel, a Cluster or
// a quorum. An Observer does not see the client of its Locker: a service with several lock servers
// makes an Observer for each. Default: no such attributes.
func WithServer(address string, port int) Option {
	return func(c *config) {
		attrs := []attribute.KeyValue{semconv.ServerAddress(address)}
		if port != 0 {
			attrs = append(attrs, semconv.ServerPort(port))
		}
		c.serverAttributes = attrs
		c.refuse(address == "" || port < 0 || port > 65535, fmt.Sprintf("WithServer(%q, %d); give a host or a name, and its port or 0", address, port))
	}
}

// WithKeySalt sets the salt of latchkit.lock.key.hash. Services with the same salt export the same
// hash for a key, so that a search finds all callers that wanted the key. Keep the salt secret: a
// reader who knows the salt can find the key of a hash by trying keys. The salt has at least 16
// bytes. Default: a random salt for each process.
func WithKeySalt(salt []byte) Option {
	return func(c *config) {
		c.salt = append([]byte(nil), salt...)
		c.refuse(len(salt) < 16, "WithKeySalt with fewer than 16 bytes; give a secret that cannot be guessed")
	}
}

// WithoutLinks leaves out the links from waiters to holders. Then the traceparents of sampled
// holders are not stored with their leases on the server either. Default: spans have these links,
// because they show which holder blocked which waiter.
func WithoutLinks() Option { return func(c *config) { c.links = false } }

// WithLogger sets the logger for losses, late or failed renewals, excluded nodes and warnings
// about the server. Records have the context of the operation, and trace_id and span_id if there is
// a span. The errors in records never show tokens, and show keys only with [WithKey]. Default, also
// for nil: slog.Default at the time of the record.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithMetricAttributes adds the result of f to every measurement of an operation: for example
// the route or the tenant in ctx. Each different value makes more time series, so there must be few
// values. f is called on the path of every operation, so it must be fast. Default: no such
// attributes, and measuring allocates no memory.
func WithMetricAttributes(f func(ctx context.Context) []attribute.KeyValue) Option {
	return func(c *config) { c.metricAttributes = f }
}

// refuse records an error with the given text if wrong is true.
func (c *config) refuse(wrong bool, text string) {
	if wrong {
		c.refused = errors.Join(c.refused, errors.New("otellock: "+text))
	}
}
