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

// maxNames is the largest number of names that are distinguished. So the back-end is not flooded if
// a Rule has a key as its Name by mistake.
const maxNames = 256

// targets has a target for each name that was used so far. A reader takes no lock, because a map is
// never changed: for each further name, a new map replaces it, at most maxNames times.
type targets struct {
	config config
	byName atomic.Pointer[map[string]*target]
	rest   *target

	mu sync.Mutex // held while a name is added
}

func (ts *targets) init(cfg config) {
	ts.config = cfg
	ts.byName.Store(&map[string]*target{})
	ts.rest = newTarget(cfg, other)
}

// targetOf returns the target for name, and makes it if the name is new. All names after the first
// maxNames share one target.
func (ts *targets) targetOf(name string) *target {
	known := *ts.byName.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= maxNames {
		return ts.rest
	}
	return ts.addTarget(name)
}

// addTarget makes the target for name, unless another goroutine has just made it.
func (ts *targets) addTarget(name string) *target {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	known := *ts.byName.Load()
	if t, ok := known[name]; ok {
		return t
	}
	if len(known) >= maxNames {
		return ts.rest
	}
	t := newTarget(ts.config, name)
	known = maps.Clone(known)
	known[name] = t
	ts.byName.Store(&known)
	return t
}

// target has the values that are made once for each name.
type target struct {
	name  string
	extra []attribute.KeyValue // further attributes of measurements

	span  [len(withSpan)]string
	start [2][]trace.SpanStartOption // by mode

	lock  [2]*measurement                               // the measurements that have only the mode, by mode
	usual [len(withSpan)][2]atomic.Pointer[measurement] // the last measurement, by operation and mode

	mu   sync.RWMutex
	more map[series]*measurement
}

// series has the attributes that distinguish the time series of one name. A field with the zero
// value makes no attribute.
type series struct {
	mode      modeText
	contended string // true or false
	result    locker.Result
	kind      string // the kind of an error
	cause     string
	scope     string
}

// modeText is a mode as the value of an attribute.
type modeText string

var modeTexts = [2]modeText{modeText(locker.Exclusive.String()), modeText(locker.Shared.String())}

// measurement has the options of one series, for each kind of instrument. The options are made
// once, and used for all later measurements of the series.
type measurement struct {
	series series
	record []metric.RecordOption
	add    []metric.AddOption
}

func newTarget(cfg config, name string) *target {
	name = printable(name)
	t := &target{name: name, extra: cfg.serverAttributes, more: make(map[series]*measurement)}
	for i, op := range withSpan {
		t.span[i] = string(op) + " " + name
	}
	for mode := range t.start {
		attrs := append([]attribute.KeyValue(nil), cfg.serverAttributes...)
		attrs = append(attrs, attribute.String(nameKey, name), attribute.String(modeKey, locker.Mode(mode).String()))
		t.start[mode] = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attrs...)}
		t.lock[mode] = t.make(series{mode: modeTexts[mode]})
	}
	return t
}

// cachedOptions returns the measurement options for series s of the operation op in the given mode.
// It caches the last series of each operation and mode, because most operations end like the
// operation before them.
func (t *target) cachedOptions(op locker.Op, mode locker.Mode, s series) *measurement {
	usual := &t.usual[placeOf(op)][mode]
	last := usual.Load()
	if last == nil || last.series != s {
		last = t.optionsFor(s)
		usual.Store(last)
	}
	return last
}

// optionsFor returns the measurement options for series s. It makes them when s is new.
func (t *target) optionsFor(s series) *measurement {
	t.mu.RLock()
	m := t.more[s]
	t.mu.RUnlock()
	if m != nil {
		return m
	}
	m = t.make(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.more[s] = m
	return m
}

func (t *target) make(s series) *measurement {
	attrs := append([]attribute.KeyValue(nil), t.extra...)
	attrs = append(attrs, attribute.String(nameKey, t.name))
	for _, a := range [...]struct{ key, value string }{
		{modeKey, string(s.mode)}, {resultKey, string(s.result)}, {causeKey, s.cause}, {scopeKey, s.scope},
		{string(errorTypeKey), s.kind},
	} {
		if a.value != "" {
			attrs = append(attrs, attribute.String(a.key, a.value))
		}
	}
	if s.contended != "" {
		attrs = append(attrs, attribute.Bool(contendedKey, s.contended == "true"))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	return &measurement{series: s, record: []metric.RecordOption{set}, add: []metric.AddOption{set}}
}

// withAttrs returns the options of m with attrs added. attrs come from a context.
func (m *measurement) withAttrs(attrs []attribute.KeyValue) *measurement {
	if len(attrs) == 0 {
		return m
	}
	more := metric.WithAttributes(attrs...)
	return &measurement{record: []metric.RecordOption{m.record[0], more}, add: []metric.AddOption{m.add[0], more}}
}

// printable returns the name or key s as valid UTF-8, because exporters drop a whole batch for one
// invalid string.
func printable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
