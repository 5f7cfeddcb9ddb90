package fiberlock_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"runtime"
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
		{"Content-Type: application/json\r\nContent-Encoding: gzip", `{"sku":"pen"}`, false},
		{"Content-Type: application/json\r\nContent-Encoding: x", `{"sku":"pen"}`, false},
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
	}, func(c fiber.Ctx) error {
		err := c.Next()
		if c.Get("Accept-Encoding") != "gzip" {
			t.Error("an outer middleware does not see what the client accepts")
		}
		return err
	})
	for range 2 {
		if code, body, header := s.send(t, "/orders/1", "", "Idempotency-Key", "k", "Accept-Encoding", "gzip"); code != http.StatusOK || body != "paid" || header.Get("Content-Encoding") != "" {
			t.Errorf("%d %q %v", code, body, header)
		}
	}
}

// fasthttp parses a form with a Content-Encoding only when it is asked for, and then decodes it
// without a limit. A small request could take all of the memory before its lock is even taken.
func TestACompressedFormIsNotDecodedBeforeTheLock(t *testing.T) {
	const size = 64 << 20
	var form bytes.Buffer
	z := gzip.NewWriter(&form)
	_, _ = io.WriteString(z, "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n")
	_, _ = z.Write(make([]byte, size))
	_, _ = io.WriteString(z, "\r\n--x--\r\n")
	_ = z.Close()
	sent := form.String()
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}"), func(c fiber.Ctx) error {
		if string(c.BodyRaw()) != sent {
			t.Error("the handler does not find the body that was sent")
		}
		return nil
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	code, body, _ := s.send(t, "/orders/1", sent, "Content-Type", "multipart/form-data; boundary=x", "Content-Encoding", "gzip")
	runtime.ReadMemStats(&after)
	if code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("a request of %d bytes has used %d bytes of memory", len(sent), n)
	}
}

// fasthttp has put a large file of a form on the disk. The lock does not read it from there into
// memory, and the handler finds it.
func TestALargeFileOfAFormStaysOnTheDisk(t *testing.T) {
	const size = 64 << 20
	var head bytes.Buffer
	w := multipart.NewWriter(&head)
	if _, err := w.CreateFormFile("film", "film.mp4"); err != nil {
		t.Fatal(err)
	}
	tail := "\r\n--" + w.Boundary() + "--\r\n"
	app := fiber.New(fiber.Config{StreamRequestBody: true})
	app.Post("/films/:id", fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "film:{param.id}"), func(c fiber.Ctx) error {
		file, err := c.FormFile("film")
		if err != nil || file.Size != size {
			t.Errorf("%v %v", file, err)
		}
		return nil
	})
	s := start(t, app)
	length := int64(head.Len() + size + len(tail))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.addr+"/films/1",
		io.MultiReader(&head, io.LimitReader(zeros{}, size), strings.NewReader(tail)))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = length
	r.Header.Set("Content-Type", w.FormDataContentType())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := s.client.Do(r)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	// fasthttp itself keeps up to 16 MiB of it in memory, and the race detector makes pools forget
	// their buffers. A copy in a buffer that grows takes more than three times the size.
	if n := after.TotalAlloc - before.TotalAlloc; res.StatusCode != http.StatusOK || n > size*3 {
		t.Errorf("%d: a form of %d bytes has used %d bytes of memory", res.StatusCode, length, n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A middleware that overrides the method decides which handler of Fiber runs, and so which lock is
// taken: a GET that becomes a POST needs its Idempotency-Key.
func TestTheLockIsThatOfTheOverriddenMethod(t *testing.T) {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		if method := c.Get("X-HTTP-Method-Override"); method != "" {
			c.Method(strings.Clone(method))
		}
		return c.Next()
	})
	runs := 0
	app.Post("/pay", fiberlock.MustIdempotency(lockertest.NewLocker(t, lockertest.NewMemory()), idempotency.NewMemory(), "shop"), func(c fiber.Ctx) error {
		runs++
		return c.SendString("paid")
	})
	for key, want := range map[string]int{"": http.StatusBadRequest, "k": http.StatusOK} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pay", http.NoBody)
		r.Header.Set("X-HTTP-Method-Override", "POST")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		res, err := app.Test(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("key %q: %d, want %d", key, res.StatusCode, want)
		}
	}
	if runs != 1 {
		t.Errorf("%d payments, want 1", runs)
	}
}
