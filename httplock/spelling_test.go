package httplock_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// Otherwise a client could pay order 42 once more as 042, and the program would not know it.
func TestARuleWithOnceForSaysHowItsIdsAreSpelled(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	claims := httplock.WithClaims(func(*http.Request) map[string]any { return nil })
	from := func(r httplock.Rule) error {
		_, err := httplock.FromRules(l, httplock.Rules{"POST /orders/{id}/pay": r}, claims, httplock.WithSecret([]byte("0123456789abcdef")),
			httplock.WithPart("plan", func(*http.Request) (string, error) { return "", nil }))
		return err
	}
	for key, repaired := range map[httplock.Key]string{
		"order:{param.id}":                                    "order:{param.id|int}",
		"order:{query.id}":                                    "order:{query.id|int}",
		"order:{header.Order}":                                "order:{header.Order|int}",
		"order:{cookie.order}:v1":                             "order:{cookie.order|int}:v1",
		"order:{body.order.id}":                               "order:{body.order.id|int}",
		"order:{body.orders.*.id}":                            "order:{body.orders.*.id|int}",
		"order:{header.Order|hmac}":                           "order:{header.Order|int|hmac}",
		"order:{claim.sub}:{header.X-A%7CB}:{param.id|text}:": "order:{claim.sub}:{header.X-A%7CB|int}:{param.id|text}:",
	} {
		for _, r := range []httplock.Rule{{Key: key, OnceFor: time.Hour}, {Keys: []httplock.Key{"till", key}, OnceFor: time.Hour}} {
			err := from(r)
			want := `httplock: rule "POST /orders/{id}/pay": the key "` + string(key) + `" does not say how an identity is spelled`
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `write "`+repaired+`" for whole numbers`) {
				t.Errorf("%+v: %v", r, err)
			}
		}
	}
	for _, key := range []httplock.Key{
		"order:{param.id|int}", "order:{query.id|uuid}", "order:{header.Order|lower}", "order:{cookie.order|text}", "order:{body.order.id|nfc|hmac}",
		"order:{claim.sub}:{ip}:{plan}:{idempotency-key}", "order",
	} {
		if err := from(httplock.Rule{Key: key, OnceFor: time.Hour}); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := from(httplock.Rule{Key: "order:{param.id}"}); err != nil {
		t.Errorf("without OnceFor: %v", err)
	}
}

// A body may write a number in several ways, and as a text. They are one order, or they are
// refused.
func TestAnIntInABodyIsOneNumber(t *testing.T) {
	var got string
	l := lockerFunc(func(r locker.Rule) error {
		got = r.Key
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrDone}
	})
	h := httplock.MustNew(l, "order:{body.id|int}")(paid)
	for id, want := range map[string]string{
		`42`: "order:42", `"42"`: "order:42", `42.0`: "order:42", `4.2e1`: "order:42", `420e-1`: "order:42", `"+042"`: "order:42", `"\u00342"`: "order:42", `-0`: "order:0", `-0.0`: "order:0",
		`9007199254740993`: "order:9007199254740993", `"18446744073709551616"`: "order:18446744073709551616",
		`42.5`: "", `"42.0"`: "", `"4.2e1"`: "", `" 42"`: "", `"42\n"`: "", `"4_2"`: "", `"0x2a"`: "", `"４２"`: "", `1e20`: "", `9007199254740993.0`: "", `true`: "", `[42]`: "", `null`: "",
	} {
		got = ""
		w := send(t.Context(), h, "POST", "/", `{"id": `+id+`}`)
		if code := map[bool]int{true: 400, false: 409}[want == ""]; w.Code != code || got != want {
			t.Errorf("%s: %d, %q, want %d, %q", id, w.Code, got, code, want)
		}
	}
}
