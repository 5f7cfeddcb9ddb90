package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestBuyers(t *testing.T) {
	t.Parallel()
	busy := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusConflict)
	}
	for _, test := range []struct {
		name    string
		answer  func(w http.ResponseWriter, try int)
		outcome outcome
		refused int
	}{
		{"who is served has it", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusCreated) }, gotIt, 0},
		{"who is refused comes back", func(w http.ResponseWriter, try int) {
			if try < 3 {
				busy(w)
			} else {
				w.WriteHeader(http.StatusGone)
			}
		}, soldOut, 2},
		{"who is refused too often gives up", func(w http.ResponseWriter, _ int) { busy(w) }, gaveUp, tries},
		{"a refusal without Retry-After is a failure", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusConflict) }, failed, 0},
		{"a server error is a failure", func(w http.ResponseWriter, _ int) { w.WriteHeader(http.StatusInternalServerError) }, failed, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			try := 0 // needs no mutex, because one buyer makes one request at a time
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				try++
				test.answer(w, try)
			}))
			defer server.Close()
			c := &crowd{size: 1, shop: server.URL, sku: "1"}
			ends, err := c.buy(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if e := ends[0]; e.outcome != test.outcome || e.refused != test.refused || (e.err != nil) != (test.outcome == failed) {
				t.Errorf("it ended with %+v; want how %d, refused %d", e, test.outcome, test.refused)
			}
		})
	}
}
