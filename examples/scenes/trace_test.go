package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTraceOfAContendedPurchase(t *testing.T) {
	t.Parallel()
	p := &program{seed: 1}
	v, err := p.prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	request, err := p.tracedSale(t.Context(), v)
	if err != nil || request == nil {
		t.Fatalf("of %d buyers nobody waited for the lock: %v", saleBuyers, err)
	}
	if want := "POST /skus/:id/orders"; request.Name != want {
		t.Errorf("the request's span is %q, want %q", request.Name, want)
	}
	if got, want := names(request.Inside), []string{"acquire sku", "hold sku", "release sku"}; !slices.Equal(got, want) {
		t.Fatalf("the request consists of %q, want %q", got, want)
	}
	acquire, held := request.Inside[0], request.Inside[1]
	if got, want := names(held.Inside), []string{"read stock", "charge the card", "write order and stock"}; !slices.Equal(got, want) {
		t.Errorf("under the lock happened %q, want %q", got, want)
	}
	if wait := request.lockWait(); wait <= 0 || wait != acquire.Took || wait > request.Took {
		t.Errorf("it waited %v for the lock, acquire took %v, the request %v", wait, acquire.Took, request.Took)
	}
}

func names(nodes []*node) (names []string) {
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

func TestTraceIsPrintedAsATree(t *testing.T) {
	t.Parallel()
	start := time.Now()
	span := func(name string, from, took int, attributes map[string]string, inside ...*node) *node {
		return &node{
			Name: name, Start: start.Add(time.Duration(from) * time.Millisecond), Took: time.Duration(took) * time.Millisecond,
			Attributes: attributes, Inside: inside,
		}
	}
	request := span("POST /skus/:id/orders", 0, 400, nil,
		span("acquire sku", 0, 300, map[string]string{"latchkit.lock.result": "acquired", "latchkit.lock.wait.duration": "0.3"}),
		span("hold sku", 300, 90, map[string]string{"latchkit.lock.result": "released"}, span("charge the card", 300, 80, nil)),
		span("release sku", 390, 10, map[string]string{"latchkit.lock.result": "released"}))
	var out strings.Builder
	printNode(&out, request, request, "", "")
	const want = `POST /skus/:id/orders           400 ms  ██████████████████████████████
├─ acquire sku                  300 ms  ██████████████████████········  acquired after a wait
├─ hold sku                      90 ms  ······················███████·  released
│  └─ charge the card            80 ms  ······················██████··
└─ release sku                   10 ms  ·····························█  released
`
	if out.String() != want {
		t.Errorf("it printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTraceOfAPurchaseIsPrinted(t *testing.T) {
	t.Parallel()
	code, out, errs := output(t.Context(), t, "-trace")
	if code != 0 || !strings.Contains(out, "└─ release sku") || !strings.Contains(out, "it waited") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
}
