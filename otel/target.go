package otellock

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// maxNames bounds how many names are distinguished, so that a Rule whose Name is a key by mistake
// does not flood the back-end.
const maxNames = 256

// targets knows the names seen so far. Reading takes no lock: the map is replaced, not changed, and
// that happens at most maxNames times.
type targets struct {
	config config
	known  atomic.Pointer[map[string]*target]
	rest   *target

	mu sync.Mutex // held by a caller that adds a name
}

func (ts *targets) init(cfg config) {
	ts.config = cfg
	ts.known.Store(&map[string]*target{})
	ts.rest = newTarget(cfg, other)
}

// of returns what is exported for name.
func (ts *targets) of(name string) *target {
	known := *ts.known.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= maxNames {
		return ts.rest
	}
	return ts.add(name)
}

func (ts *targets) add(name string) *target {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	known := *ts.known.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= maxNames {
		return ts.rest
	}
	t := newTarget(ts.config, name)
	known = maps.Clone(known)
	known[name] = t
	ts.known.Store(&known)
	return t
}

// target has everything that is made once per name.
type target struct {
	name  string
	extra []attribute.KeyValue // of measurements

	span  [len(verbs)]string
	start [2][]trace.SpanStartOption // by mode

	mu     sync.RWMutex
	series map[series][]metric.RecordOption
	counts map[string][]metric.AddOption // of requests, by result
}

// series has what distinguishes one time series of a name from another.
type series struct {
	mode   locker.Mode
	result locker.Result
	kind   string
}

func newTarget(cfg config, name string) *target {
	name = printable(name)
	t := &target{name: name, extra: cfg.metricAttributes, series: make(map[series][]metric.RecordOption), counts: make(map[string][]metric.AddOption)}
	for op, verb := range verbs {
		t.span[op] = verb + " " + name
	}
	for mode := range t.start {
		attrs := append([]attribute.KeyValue(nil), cfg.spanAttributes...)
		attrs = append(attrs, attribute.String(nameKey, name), attribute.String(modeKey, locker.Mode(mode).String()))
		t.start[mode] = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attrs...)}
	}
	return t
}

// measured returns the attributes of one measurement.
func (t *target) measured(mode locker.Mode, result locker.Result, kind string) []metric.RecordOption {
	s := series{mode, result, kind}
	t.mu.RLock()
	opts, ok := t.series[s]
	t.mu.RUnlock()
	if ok {
		return opts
	}
	attrs := append([]attribute.KeyValue(nil), t.extra...)
	attrs = append(attrs, attribute.String(nameKey, t.name), attribute.String(modeKey, mode.String()),
		attribute.String(resultKey, string(result)))
	if kind != "" {
		attrs = append(attrs, errorTypeKey.String(kind))
	}
	opts = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.series[s] = opts
	return opts
}

// printable makes a name or key valid UTF-8, because exporters drop a whole batch for one string
// that is not.
func printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
