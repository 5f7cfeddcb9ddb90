package fiberlock_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// raw sends a request as it stands, and returns the reply. The handler's reply is the key of its
// lock and the value that it has read, each on a line.
func raw(t *testing.T, s *server, request string) (key, read string, refused bool) {
	t.Helper()
	reply, err := io.ReadAll(s.dial(t, request))
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(reply), "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		return "", "", true
	}
	key, read, _ = strings.Cut(body, "\n")
	return key, read, false
}

func reader(t *testing.T, k httplock.Key, read func(fiber.Ctx) string) *server {
	return serve(t, fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), k), func(c fiber.Ctx) error {
		lease, _ := fiberlock.FromContext(c)
		return c.SendString(lease.Key() + "\n" + read(c))
	})
}

// fasthttp reads a query in another way than net/http: it keeps a pair with a semicolon or a broken
// escape, and cuts a fragment off.
func TestAKeyOfTheQueryIsWhatFiberReads(t *testing.T) {
	s := reader(t, "q:{query.id}", func(c fiber.Ctx) string { return c.Query("id") })
	ran := 0
	for _, query := range []string{"id=12;34", "id=12;34&id=decoy", "id=%zz&id=decoy", "id=%zz", "id=1#x", "id=a+b", "id=%00", "i%64=5", "id=12&id=12"} {
		k, read, refused := raw(t, s, "POST /orders/1?"+query+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		if !refused && k != key.Of("q", read) {
			t.Errorf("%s: the lock is %q, and the handler reads %q", query, k, read)
		}
		if !refused {
			ran++
		}
	}
	if ran < 5 {
		t.Errorf("only %d requests have run", ran)
	}
}

func TestAKeyOfACookieIsWhatFiberReads(t *testing.T) {
	s := reader(t, "c:{cookie.user}", func(c fiber.Ctx) string { return c.Cookies("user") })
	for cookie, ran := range map[string]bool{"user=José": true, "user=José; user=decoy": false, `user="a"; user=decoy`: false, `user=a\b`: true, "user=ann": true} {
		k, read, refused := raw(t, s, "POST /orders/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: "+cookie+"\r\nContent-Length: 0\r\n\r\n")
		if refused == ran || !refused && k != key.Of("c", read) {
			t.Errorf("%s: refused %v, the lock is %q, and the handler reads %q", cookie, refused, k, read)
		}
	}
}

// c.Query returns the first of several values, and c.Bind().Query the last, of all spellings of a
// name. No lock would be right for both.
func TestAPartWithDifferentValuesIsRefused(t *testing.T) {
	for k, requests := range map[httplock.Key]map[string]bool{
		"q:{query.id}":        {"?id=1 HTTP/1.1": true, "?id=1&id=1 HTTP/1.1": true, "?id=1&id=2 HTTP/1.1": false, "?id=1&ID=2 HTTP/1.1": false, "?id=1&id[]=2 HTTP/1.1": false, "?x=2&id=1 HTTP/1.1": true},
		"h:{header.X-Tenant}": {" HTTP/1.1\r\nX-Tenant: a": true, " HTTP/1.1\r\nX-Tenant: a\r\nx-tenant: b": false, " HTTP/1.1\r\nX-Tenant: a\r\nX-TENANT: a": true},
		"c:{cookie.user}":     {" HTTP/1.1\r\nCookie: user=a; user=a": true, " HTTP/1.1\r\nCookie: user=a; User=b": false},
	} {
		s := reader(t, k, func(fiber.Ctx) string { return "" })
		for request, ran := range requests {
			if _, _, refused := raw(t, s, "POST /orders/1"+request+"\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"); refused == ran {
				t.Errorf("%s: %q: refused %v", k, request, refused)
			}
		}
	}
}

// c.Body decodes the body as the header Content-Encoding says, and c.BodyRaw does not.
func TestAKeyOfTheBodyIsWhatFiberReads(t *testing.T) {
	type article struct {
		Sku string `json:"sku"`
	}
	s := reader(t, "b:{body.sku}", func(c fiber.Ctx) string {
		var to article
		if err := c.Bind().Body(&to); err != nil {
			return err.Error()
		}
		return to.Sku
	})
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, `{"sku":"pen"}`)
	_ = z.Close()
	for _, tc := range []struct {
		head, body string
		ran        bool
	}{
		{"Content-Type: application/json", `{"sku":"pen"}`, true},
		{"Content-Type: application/vnd.api+json", `{"sku":"pen"}`, true},
		{"Content-Type: application/json\r\nContent-Encoding: gzip", zipped.String(), false},
		{"X-No-Type: 1", `{"sku":"pen"}`, false},
		{"Content-Type: application/x-www-form-urlencoded", `{"sku":"pen"}`, false},
	} {
		k, read, refused := raw(t, s, fmt.Sprintf("POST /orders/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\nContent-Length: %d\r\n\r\n%s", tc.head, len(tc.body), tc.body))
		if refused == tc.ran || tc.ran && (k != "b:pen" || read != "pen") {
			t.Errorf("%q: refused %v, the lock is %q, and the handler reads %q", tc.head, refused, k, read)
		}
	}
}

// The first client accepts gzip, and the client of the repeated request may not.
func TestARepeatedResponseIsReadableByEveryClient(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	s := serve(t, fiberlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c fiber.Ctx) error {
		if c.Get("Accept-Encoding") != "" {
			c.Set("Content-Encoding", "gzip")
		}
		return c.SendString("paid")
	})
	for range 2 {
		if code, body, header := s.send(t, "/orders/1", "", "Idempotency-Key", "k", "Accept-Encoding", "gzip"); code != http.StatusOK || body != "paid" || header.Get("Content-Encoding") != "" {
			t.Errorf("%d %q %v", code, body, header)
		}
	}
}
