package main

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// A tracer keeps the spans of one shop in memory. A real service would export them.
type tracer struct {
	provider *sdk.TracerProvider
	mu       sync.Mutex
	spans    []sdk.ReadOnlySpan
}

var _ sdk.SpanExporter = (*tracer)(nil)

func newTracer() *tracer {
	t := &tracer{}
	t.provider = sdk.NewTracerProvider(sdk.WithSyncer(t))
	return t
}

// ExportSpans keeps spans that have ended.
func (t *tracer) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, spans...)
	return nil
}

// Shutdown does nothing, because the spans are only in memory.
func (t *tracer) Shutdown(context.Context) error { return nil }

// middleware makes a span of every request, and puts it into the request's context.
func (t *tracer) middleware() gin.HandlerFunc {
	return otelgin.Middleware("flashsale", otelgin.WithTracerProvider(t.provider))
}

// observer makes spans of what a Locker does: the wait, the hold and the release.
func (t *tracer) observer() (locker.Observer, error) {
	return otellock.New(otellock.WithTracerProvider(t.provider), otellock.WithHoldSpans())
}

// step begins a span for a part of a request, if the request is traced.
func step(ctx context.Context, name string) (_ context.Context, end func()) {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("flashsale").Start(ctx, name)
	return ctx, func() { span.End() }
}

// A node is a span, and the spans inside it.
type node struct {
	Name       string
	Start      time.Time
	Took       time.Duration
	Attributes map[string]string
	Inside     []*node
}

// find returns the first node whose name starts with prefix, in the order of the tree.
func (n *node) find(prefix string) *node {
	if n == nil || strings.HasPrefix(n.Name, prefix) {
		return n
	}
	for _, inside := range n.Inside {
		if found := inside.find(prefix); found != nil {
			return found
		}
	}
	return nil
}

// lockWait returns how long the request waited for the lock.
func (n *node) lockWait() time.Duration {
	if acquire := n.find("acquire "); acquire != nil {
		return acquire.Took
	}
	return 0
}

// hasWaited reports whether the request got the lock, and had to wait for it.
func (n *node) hasWaited() bool {
	acquire := n.find("acquire ")
	return acquire != nil && acquire.Attributes["latchkit.lock.result"] == "acquired" &&
		acquire.Attributes["latchkit.lock.wait.duration"] != ""
}

// compareDurations compares the durations of the requests a and b. A nil request is shorter than
// any other request.
func compareDurations(a, b *node) int {
	took := func(n *node) time.Duration {
		if n == nil {
			return -1
		}
		return n.Took
	}
	return cmp.Compare(took(a), took(b))
}

// serveTrace answers GET /trace with the slowest purchase that waited for the lock. If no
// purchase waited, the answer is null.
func (t *tracer) serveTrace(c *gin.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slowest *node
	for _, root := range buildTrees(t.spans) {
		if root.hasWaited() && root.find("write ") != nil && compareDurations(root, slowest) > 0 {
			slowest = root
		}
	}
	c.JSON(http.StatusOK, slowest)
}

// buildTrees makes a node of each span, and puts it into the node of its parent. It returns the
// nodes without a parent.
func buildTrees(spans []sdk.ReadOnlySpan) (roots []*node) {
	nodes := make(map[trace.SpanID]*node, len(spans))
	for _, s := range spans {
		n := &node{Name: s.Name(), Start: s.StartTime(), Took: s.EndTime().Sub(s.StartTime()), Attributes: map[string]string{}}
		for _, a := range s.Attributes() {
			n.Attributes[string(a.Key)] = a.Value.String()
		}
		nodes[s.SpanContext().SpanID()] = n
	}
	for _, s := range spans {
		n := nodes[s.SpanContext().SpanID()]
		if parent := nodes[s.Parent().SpanID()]; parent != nil {
			parent.Inside = append(parent.Inside, n)
		} else {
			roots = append(roots, n)
		}
	}
	for _, n := range nodes {
		slices.SortFunc(n.Inside, func(a, b *node) int { return a.Start.Compare(b.Start) })
	}
	return roots
}

// slowestPurchase asks each shop for its slowest purchase that waited for the lock. It returns
// the slowest purchase of all shops.
func slowestPurchase(ctx context.Context, shops []string) (*node, error) {
	found := make([]*node, len(shops))
	for i, url := range shops {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/trace", nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		err = json.NewDecoder(resp.Body).Decode(&found[i])
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	return slices.MaxFunc(found, compareDurations), nil
}

// resultNote returns the result of a lock in a few words, from the attributes of its span.
func (n *node) resultNote() string {
	note := n.Attributes["latchkit.lock.result"]
	if n.Attributes["latchkit.lock.wait.duration"] != "" {
		note += " after a wait"
	}
	return note
}
