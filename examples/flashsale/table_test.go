package main

import (
	"strings"
	"testing"
	"time"
)

func TestTableSaysWhatTheNumbersShow(t *testing.T) {
	t.Parallel()
	s := &sale{items: 100, buyers: 300}
	none, naive := result{way: "no lock", sold: 300, oversold: 200}, result{way: "SETNX + DEL", sold: 162, oversold: 62}
	for _, test := range []struct {
		name    string
		results []result
		want    string
	}{
		{"as usual", []result{none, naive, {way: "latchkit", sold: 100}},
			"Without a lock the shop sold 300 items out of a stock of 100;\nSETNX + DEL oversold 62: the lock expired during slow payments;\nlatchkit, with the same TTL, sold exactly 100."},
		{"a lucky naive lock", []result{none, {way: "SETNX + DEL", sold: 100}, {way: "latchkit", sold: 100}}, "SETNX + DEL oversold nothing this time"},
		{"a defect", []result{none, naive, {way: "latchkit", sold: 101, oversold: 1}}, "latchkit sold 101 instead of 100."},
	} {
		if got := verdict(s, test.results); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q does not say %q", test.name, got, test.want)
		}
	}
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
	printTrace(&out, request)
	const want = `
The slowest purchase of the latchkit sale:

POST /skus/:id/orders           400 ms  ██████████████████████████████
├─ acquire sku                  300 ms  ██████████████████████········  acquired after a wait
├─ hold sku                      90 ms  ······················███████·  released
│  └─ charge the card            80 ms  ······················██████··
└─ release sku                   10 ms  ·····························█  released

Of 400 ms it waited 300 ms for the lock.
`
	if out.String() != want {
		t.Errorf("it printed\n%s\nwant\n%s", out.String(), want)
	}
}
