package main

import (
	"slices"
	"testing"
)

func TestTraceOfAContendedPurchase(t *testing.T) {
	t.Parallel()
	s := &sale{items: 20, buyers: 40, seed: 1, procs: 1, trace: true}
	_, request := hold(t, s)
	if request == nil {
		t.Fatal("of 40 buyers nobody waited for the lock")
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
