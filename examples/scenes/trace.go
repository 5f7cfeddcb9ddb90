package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

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
	return otelgin.Middleware("scenes", otelgin.WithTracerProvider(t.provider))
}

// observer makes spans of what a Locker does: the wait, the hold and the release.
func (t *tracer) observer() (locker.Observer, error) {
	return otellock.New(otellock.WithTracerProvider(t.provider), otellock.WithHoldSpans())
}

// step begins a span for a part of a request, if the request is traced.
func step(ctx context.Context, name string) (_ context.Context, end func()) {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("scenes").Start(ctx, name)
	return ctx, func() { span.End() }
}

// tracePurchase sells under latchkit's lock, and prints the trace of the slowest purchase.
func (p *program) tracePurchase(ctx context.Context, v *venue, out io.Writer) error {
	request, err := p.tracedSale(ctx, v)
	if err != nil {
		return err
	}
	if request == nil {
		return errors.New("no purchase waited for the lock, so there is no trace to show")
	}
	fmt.Fprintf(out, "The slowest of %d purchases:\n\n", saleBuyers)
	printNode(out, request, request, "", "")
	fmt.Fprintf(out, "\nOf %s it waited %s for the lock.\n", millis(request.Took), millis(request.lockWait()))
	return nil
}

// tracedSale sells to a crowd in one shop, and returns its slowest purchase.
func (p *program) tracedSale(ctx context.Context, v *venue) (request *node, err error) {
	books, sku := v.stockroom.store, strings.ToLower(rand.Text()[:8])
	defer func() { err = errors.Join(err, books.clear(context.WithoutCancel(ctx), sku)) }()
	if err := books.fill(ctx, sku, saleItems); err != nil {
		return nil, err
	}
	sh, err := openShop(ctx, shopConfig{Way: len(ways) - 1, Redis: v.redis, Stockroom: v.stockroom.addr, Seed: p.seed, Trace: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sh.close(ctx)) }()
	c := &crowd{size: saleBuyers, seed: p.seed, sku: sku, shop: sh.url}
	if _, err := c.buy(ctx); err != nil {
		return nil, err
	}
	return sh.tracer.slowestPurchase(), nil
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

// slowestPurchase returns the slowest purchase that waited for the lock, or nil.
func (t *tracer) slowestPurchase() (slowest *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, root := range buildTrees(t.spans) {
		if root.hasWaited() && root.find("write ") != nil && (slowest == nil || root.Took > slowest.Took) {
			slowest = root
		}
	}
	return slowest
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

// resultNote returns the result of a lock in a few words, from the attributes of its span.
func (n *node) resultNote() string {
	note := n.Attributes["latchkit.lock.result"]
	if n.Attributes["latchkit.lock.wait.duration"] != "" {
		note += " after a wait"
	}
	return note
}

func millis(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
}

// printNode prints the span n and the spans inside n, each with its share of the time of the
// span request. The line of n begins with the prefix first, and the lines below it begin with
// the prefix rest.
func printNode(w io.Writer, n, request *node, first, rest string) {
	const nameWidth, barWidth = 28, 30
	name := first + n.Name
	pad := strings.Repeat(" ", max(0, nameWidth-utf8.RuneCountInString(name)))
	scale := func(d time.Duration) int { return int(d * barWidth / max(request.Took, 1)) }
	from := min(scale(n.Start.Sub(request.Start)), barWidth-1)
	to := min(max(scale(n.Start.Sub(request.Start)+n.Took), from+1), barWidth)
	bar := strings.Repeat("·", from) + strings.Repeat("█", to-from) + strings.Repeat("·", barWidth-to)
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%s%s %9s  %s  %s", name, pad, millis(n.Took), bar, n.resultNote()), " "))
	for i, inside := range n.Inside {
		if i == len(n.Inside)-1 {
			printNode(w, inside, request, rest+"└─ ", rest+"   ")
		} else {
			printNode(w, inside, request, rest+"├─ ", rest+"│  ")
		}
	}
}
