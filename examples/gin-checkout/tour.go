package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// tour acts as the clients of a shop, and prints their requests and replies.
func tour(out io.Writer) error {
	spans := tracetest.NewSpanRecorder() // a real service has an exporter
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))

	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()

	paying, paid := make(chan struct{}), make(chan struct{})
	s, err := newShop(client, func(_ context.Context, cart string) error {
		if cart == "42" { // the payment of this cart is slow
			close(paying)
			<-paid
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer s.stop()
	web := httptest.NewServer(s.engine)
	defer web.Close()
	v := &visitor{url: web.URL, out: out}

	v.say("Cart 42 is being paid. A second click on it is refused, and cart 43 is served.")
	v.clickTwice(paying, paid)

	v.say("A reply was lost, and the client repeats the request: it gets the stored reply, and the handler does not run.")
	v.show(checkout("43", "key-3"))

	v.say("Another request with the same Idempotency-Key is refused.")
	v.show(checkout("44", "key-3"))

	v.say("A value that a rule needs is missing or wrong.")
	v.show(request{method: "PUT", path: "/carts/number-42/items"})
	v.show(request{method: "POST", path: "/carts/42/checkout"})
	v.show(request{method: "POST", path: "/reservations", body: `{"count": 2}`})

	v.say("The key contains a member of the body; the handler can still read the body.")
	v.show(request{method: "POST", path: "/reservations", body: `{"sku": "book", "count": 2}`})

	v.say("A basket locks each of its articles.")
	v.show(request{method: "POST", path: "/baskets", body: `{"items": [{"sku": "pen"}, {"sku": "book"}, {"sku": "ink"}]}`})

	v.say("Redis is down: no handler runs without its lock.")
	server.Close()
	v.show(request{method: "POST", path: "/reservations", body: `{"sku": "book", "count": 2}`})

	v.say("The spans of the first four requests.")
	web.Close() // Close waits until all requests have ended
	v.trace(spans.Ended(), 4)
	return nil
}

// A request is what a client sends.
type request struct{ method, path, customer, key, body string }

func checkout(cart, key string) request {
	return request{method: "POST", path: "/carts/" + cart + "/checkout", customer: "ann", key: key}
}

// A visitor is a client that prints its requests and replies.
type visitor struct {
	url string
	out io.Writer
}

// While cart 42 is being paid, clickTwice makes two clicks. One click pays cart 42 again, and the
// other click pays cart 43.
func (v *visitor) clickTwice(paying <-chan struct{}, paid chan<- struct{}) {
	first := make(chan string)
	go func() { first <- v.send(checkout("42", "key-1")) }()
	<-paying
	v.show(checkout("42", "key-2"))
	v.show(checkout("43", "key-3"))
	close(paid)
	v.print(checkout("42", "key-1"), <-first)
}

func (v *visitor) say(text string) { _, _ = fmt.Fprintf(v.out, "\n# %s\n", text) }

func (v *visitor) show(r request) { v.print(r, v.send(r)) }

func (v *visitor) print(r request, reply string) {
	line := r.method + " " + r.path
	if r.key != "" {
		line += "  Idempotency-Key: " + r.key
	}
	if r.body != "" {
		line += "  " + r.body
	}
	_, _ = fmt.Fprintf(v.out, "> %s\n< %s\n", line, reply)
}

// send sends a request. It returns the reply in one line: the status, two headers, and the code of
// a problem or the body. These parts of a reply are the same in every run.
func (v *visitor) send(r request) string {
	req, err := http.NewRequestWithContext(context.Background(), r.method, v.url+r.path, strings.NewReader(r.body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+cmp.Or(r.customer, "ann"))
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	words := []string{res.Status}
	for _, name := range []string{"Retry-After", "Idempotency-Replayed"} {
		if value := res.Header.Get(name); value != "" {
			words = append(words, name+": "+value)
		}
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	var problem struct{ Code, Detail string }
	if err := json.Unmarshal(body, &problem); err == nil && problem.Code != "" {
		words = append(words, problem.Code+": "+problem.Detail)
	} else if len(body) > 0 {
		words = append(words, string(body))
	}
	return strings.Join(words, "  ")
}

// trace prints the spans of the locks that the first n requests took, in the order of their start.
func (v *visitor) trace(spans []sdk.ReadOnlySpan, n int) {
	var requests []sdk.ReadOnlySpan
	for _, s := range spans {
		if !s.Parent().IsValid() {
			requests = append(requests, s)
		}
	}
	byStart(requests)
	for _, r := range requests[:min(n, len(requests))] {
		_, _ = fmt.Fprintln(v.out, r.Name())
		var inside []sdk.ReadOnlySpan
		for _, s := range spans {
			if s.Parent().SpanID() == r.SpanContext().SpanID() {
				inside = append(inside, s)
			}
		}
		byStart(inside)
		for _, s := range inside {
			result := ""
			for _, a := range s.Attributes() {
				if a.Key == "latchkit.lock.result" {
					result = a.Value.AsString()
				}
			}
			_, _ = fmt.Fprintf(v.out, "  %s: %s\n", s.Name(), result)
		}
	}
}

func byStart(spans []sdk.ReadOnlySpan) {
	slices.SortFunc(spans, func(a, b sdk.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
}
