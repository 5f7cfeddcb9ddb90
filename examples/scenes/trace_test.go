package main

import (
	"slices"
	"strings"
	"testing"
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

func TestTraceOfAPurchaseIsPrinted(t *testing.T) {
	t.Parallel()
	code, out, errs := output(t, "-trace")
	if code != 0 || !strings.Contains(out, "└─ release sku") || !strings.Contains(out, "it waited") {
		t.Errorf("exit code %d: %s\n%s", code, errs, out)
	}
}
