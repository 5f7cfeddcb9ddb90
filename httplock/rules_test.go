package httplock_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

func TestARuleGuardsTheHandlerOfItsRoute(t *testing.T) {
	var got []locker.Rule
	l := lockerFunc(func(r locker.Rule) error {
		got = append(got, r)
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
	})
	guard, err := httplock.FromRules(l, httplock.Rules{
		"POST /orders/{id}/pay":     {Key: "order:{param.id}", Mode: locker.Shared},
		"PUT /files/{path...}":      {Key: "file:{param.path}"},
		"DELETE /files/{id:[0-9]+}": {Key: "file:{param.id}"}, // a parameter as chi writes it
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for _, route := range []string{"POST /orders/{id}/pay", "POST /orders/{id}/ship", "PUT /files/{path...}", "/"} {
		mux.Handle(route, guard.Wrap(route, paid))
	}
	if err := guard.Validate(); err == nil || err.Error() != `httplock: rule "DELETE /files/{id:[0-9]+}": no handler was wrapped for this route; correct its name, or wrap the route's handler` {
		t.Errorf("%v", err)
	}
	guard.Wrap("delete  /files/{id:[0-9]+}", paid)
	if err := guard.Validate(); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		method, path string
		code         int
		key          string
	}{
		{"POST", "/orders/42/pay", 409, "order:42"}, {"POST", "/orders/42/ship", 200, ""}, {"PUT", "/files/a/b", 409, "file:a/b"}, {"GET", "/", 200, ""},
	} {
		got = nil
		w := send(t.Context(), mux, tc.method, tc.path, "")
		if w.Code != tc.code || (len(got) == 1) != (tc.key != "") || tc.key != "" && got[0].Key != tc.key {
			t.Errorf("%s %s: %d, %+v", tc.method, tc.path, w.Code, got)
		}
		if tc.path == "/orders/42/pay" && got[0].Mode != locker.Shared {
			t.Errorf("%+v", got)
		}
	}
}

func TestParametersAfterColonsNeedPathValues(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	rules := httplock.Rules{"POST /orders/:id/files/{file}": {Keys: []httplock.Key{"order:{param.id}", "file:{param.file}"}}}
	vars := httplock.WithPathValues(func(*http.Request) map[string]string { return nil })
	if _, err := httplock.FromRules(l, rules, vars); err != nil {
		t.Error(err)
	}
	if _, err := httplock.FromRules(l, rules); err == nil || !strings.Contains(err.Error(), "has {param.id}, and the path has only file") {
		t.Errorf("without WithPathValues: %v", err)
	}
}

func TestRulesThatCannotBeMeantAreNamed(t *testing.T) {
	_, err := httplock.FromRules(lockerFunc(func(locker.Rule) error { return nil }), httplock.Rules{
		"POST /a/{id}": {Key: "a:{param.number}"}, "GET /b": {Key: "{body.x}:b"}, "POST /c/{a}/{b}": {Key: "c:{param.b}"},
		"POST /d": {Idempotency: "shop", Name: "d"},
	})
	for _, want := range []string{
		`httplock: rule "GET /b": its key "{body.x}:b" reads the body, and a GET request has no body`,
		`rule "POST /a/{id}": its key "a:{param.number}" has {param.number}, and the path has only id`,
		`rule "POST /d": the rule has no Key, so its Name, Mode, Limit, Weight, KeepFor, EndAfter or OnceFor would do nothing`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "POST /c") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
