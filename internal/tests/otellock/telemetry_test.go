package otellock_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// scopeName is the name of the instrumentation scope, by which backends select.
const scopeName = "github.com/latchkit/latchkit/otel"

// telemetry has an SDK that keeps its data in memory, and an Observer that uses this SDK.
type telemetry struct {
	observer locker.Observer
	tracers  trace.TracerProvider
	meters   metric.MeterProvider
	tracer   trace.Tracer // the tracer of the program that uses the locks
	spans    *tracetest.SpanRecorder
	reader   *sdkmetric.ManualReader
	logs     *records
}

func newTelemetry(t testing.TB, sampler sdktrace.Sampler, opts ...otellock.Option) *telemetry {
	t.Helper()
	tel := &telemetry{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader(), logs: new(records)}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tel.spans), sdktrace.WithSampler(sampler))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.reader))
	tel.tracers, tel.tracer, tel.meters = tracers, tracers.Tracer("service"), meters
	var err error
	tel.observer, err = otellock.New(tel.options(opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// options returns opts together with the options that make the Observer use this SDK.
func (tel *telemetry) options(opts ...otellock.Option) []otellock.Option {
	return append(opts, otellock.WithTracerProvider(tel.tracers), otellock.WithMeterProvider(tel.meters),
		otellock.WithLogger(slog.New(slog.NewJSONHandler(tel.logs, nil))))
}

// records has the lines of a log.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(line))
	return len(line), nil
}

// linesWith returns the lines of the log that contain all the given texts.
func (r *records) linesWith(texts ...string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, line)
		}
	}
	return found
}

// measured returns a sorted list with a line for each time series, such as "held.active
// mode=exclusive name=order: 1". The line of a histogram has the number of values and their mean.
func (tel *telemetry) measured(t testing.TB) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := tel.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	line := func(m metricdata.Metrics, set attribute.Set, value string) {
		name, attrs := strings.TrimPrefix(m.Name, "latchkit."), ""
		for _, a := range set.ToSlice() {
			attrs += " " + strings.TrimPrefix(strings.TrimPrefix(string(a.Key), "latchkit."), "lock.") + "=" + fmt.Sprint(a.Value.AsInterface())
		}
		lines = append(lines, strings.TrimPrefix(name, "lock.")+attrs+": "+value)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					line(m, p.Attributes, fmt.Sprintf("%d of %.0f", p.Count, p.Sum/float64(p.Count)))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					line(m, p.Attributes, fmt.Sprintf("%d of %d", p.Count, p.Sum/int64(p.Count)))
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					line(m, p.Attributes, fmt.Sprint(p.Value))
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// span returns the span of this name that has ended. There must be exactly one such span.
func (tel *telemetry) span(t testing.TB, name string) sdktrace.ReadOnlySpan {
	t.Helper()
	var found sdktrace.ReadOnlySpan
	for _, s := range tel.spans.Ended() {
		if s.Name() == name {
			if found != nil {
				t.Fatalf("there are two spans %q", name)
			}
			found = s
		}
	}
	if found == nil {
		t.Fatalf("there is no span %q", name)
	}
	return found
}

// histogram returns the durations of acquires.
func (tel *telemetry) histogram(t testing.TB) metricdata.Histogram[float64] {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := tel.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == "latchkit.lock.acquire.duration" {
				if scope.Scope.Name != scopeName || scope.Scope.Version == "" || m.Unit != "s" {
					t.Errorf("scope %+v, unit %q", scope.Scope, m.Unit)
				}
				return m.Data.(metricdata.Histogram[float64])
			}
		}
	}
	return metricdata.Histogram[float64]{}
}

// requests returns the number of requests for each "name result".
func (tel *telemetry) requests(t testing.TB) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := tel.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "latchkit.lock.requests" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				name, _ := p.Attributes.Value("latchkit.lock.name")
				result, _ := p.Attributes.Value("latchkit.lock.result")
				counts[name.AsString()+" "+result.AsString()] = p.Value
			}
		}
	}
	return counts
}

// surrounded checks that the span around a request has the result of the request's lock. It also
// checks that the request was counted with this result.
func (tel *telemetry) surrounded(t testing.TB, span sdktrace.ReadOnlySpan, result string) {
	t.Helper()
	words := " " + text(span.Attributes()) + " "
	if !strings.Contains(words, " result="+result+" ") || !strings.Contains(words, " name=") {
		t.Errorf("the span around the request has%swant the result %s", words, result)
	}
	for counted := range tel.requests(t) {
		if strings.HasSuffix(counted, " "+result) {
			return
		}
	}
	t.Errorf("counted are %v, want the result %s", tel.requests(t), result)
}

// spanLines returns a line for each span of a lock, in the order of their ends, such as "acquire
// order: Unset mode=exclusive …".
func (tel *telemetry) spanLines(t testing.TB) []string {
	t.Helper()
	var lines []string
	for _, s := range tel.spans.Ended() {
		if s.InstrumentationScope().Name != scopeName {
			continue
		}
		if s.SpanKind() != trace.SpanKindInternal || len(s.Events()) > 0 {
			t.Errorf("span %q has kind %v and events %v", s.Name(), s.SpanKind(), s.Events())
		}
		status := s.Status().Code.String()
		if s.Status().Code == codes.Error {
			status += "(" + s.Status().Description + ")"
		}
		lines = append(lines, s.Name()+": "+status+" "+text(s.Attributes()))
	}
	return lines
}

// apart is the list of the attributes that the function text leaves out, because other tests
// check them.
var apart = []string{"key.hash", "contended", "holder.fence", "holder.metadata", "handoff.streak"}

// text turns attributes into one sorted line. It leaves out their common prefix, and the
// attributes in apart. It writes N for every fence.
func text(attrs []attribute.KeyValue) string { return textWithout(apart, attrs) }

func textWithout(omit []string, attrs []attribute.KeyValue) string {
	var words []string
	for _, a := range attrs {
		key := strings.TrimPrefix(string(a.Key), "latchkit.lock.")
		value := fmt.Sprint(a.Value.AsInterface())
		if (key == "fence" || key == "holder.fence") && a.Value.AsInt64() > 0 {
			value = "N"
		}
		if slices.Contains(omit, key) {
			continue
		}
		words = append(words, key+"="+value)
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
