package fiberlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	recovery "github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// server is an app that serves requests.
type server struct {
	addr   string
	client *http.Client
}

// start starts an app on a free port.
func start(t *testing.T, app *fiber.App) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	s := &server{addr: listener.Addr().String(), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// serve starts an app with one guarded route, POST /orders/:id.
func serve(t *testing.T, guard, h fiber.Handler, outside ...fiber.Handler) *server {
	t.Helper()
	app := fiber.New()
	for _, o := range outside {
		app.Use(o)
	}
	app.Post("/orders/:id", guard, h)
	return start(t, app)
}

// send posts. It returns the status, the body and the header.
func (s *server) send(t *testing.T, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := s.client.Do(r)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(text), res.Header
}

var errBank = errors.New("the bank does not answer")

func TestAHandlerThatReturnsAnErrorHasFailed(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	once := httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour })
	for name, guard := range map[string]fiber.Handler{
		"New":         fiberlock.MustNew(l, "a:{param.id}"),
		"Idempotency": fiberlock.MustIdempotency(l, idempotency.NewMemory(), "shop"),
		"Once":        fiberlock.MustNew(l, "c:{param.id}", once),
	} {
		runs := 0
		s := serve(t, guard, func(c fiber.Ctx) error {
			if runs++; runs == 1 {
				return errBank
			}
			return c.Status(http.StatusCreated).SendString("paid")
		})
		if code, body, _ := s.send(t, "/orders/1", "{}", "Idempotency-Key", "k"); code != 500 || body != errBank.Error() {
			t.Errorf("%s: %d %q", name, code, body)
		}
		if code, body, _ := s.send(t, "/orders/1", "{}", "Idempotency-Key", "k"); code != 201 || body != "paid" || runs != 2 {
			t.Errorf("%s, again: %d %q, %d runs", name, code, body, runs)
		}
	}
}

// Whatever status the ErrorHandler writes for the error of a handler, its work is not done.
func TestAnErrorIsAFailureAlsoWithAStatusBelow400(t *testing.T) {
	once := httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour })
	runs := 0
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", once), func(fiber.Ctx) error {
		runs++
		return fiber.NewError(http.StatusAccepted)
	})
	for range 2 {
		if code, body, _ := s.send(t, "/orders/1", "{}"); code != http.StatusAccepted {
			t.Errorf("%d %q", code, body)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs, want 2", runs)
	}
}

// fasthttp keeps the parts of a multipart form, and not its bytes.
func TestARepeatedFormIsTheSameRequest(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	runs := 0
	s := serve(t, fiberlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c fiber.Ctx) error {
		runs++
		return c.SendString(c.FormValue("f3") + c.FormValue("f7"))
	})
	form := func(field, file string) string {
		var body strings.Builder
		w := multipart.NewWriter(&body)
		_ = w.SetBoundary("b")
		for i := range 9 {
			_ = w.WriteField(fmt.Sprint("f", i), field+fmt.Sprint(i))
		}
		part, _ := w.CreateFormFile("file", file)
		_, _ = io.WriteString(part, "text")
		_ = w.Close()
		return body.String()
	}
	post := func(body string) (int, string) {
		code, text, _ := s.send(t, "/orders/1", body, "Idempotency-Key", "k", "Content-Type", "multipart/form-data; boundary=b")
		return code, text
	}
	for range 8 {
		if code, body := post(form("", "a.txt")); code != 200 || body != "37" {
			t.Errorf("%d %q", code, body)
		}
	}
	for name, other := range map[string]string{"field": form("x", "a.txt"), "file": form("", "b.txt")} {
		if code, _ := post(other); code != 422 || runs != 1 {
			t.Errorf("another %s with the same key: %d, %d runs", name, code, runs)
		}
	}
}

// A body that a handler streams is sent when the handlers have returned. It is not stored, but the
// work is done.
func TestAStreamedResponseIsNotStoredAndItsWorkNotRepeated(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	runs := 0
	s := serve(t, fiberlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c fiber.Ctx) error {
		runs++
		return c.SendStream(io.MultiReader(strings.NewReader("pa"), strings.NewReader("id")))
	})
	if code, body, _ := s.send(t, "/orders/1", "", "Idempotency-Key", "k"); code != 200 || body != "paid" {
		t.Errorf("%d %q", code, body)
	}
	if code, body, _ := s.send(t, "/orders/1", "", "Idempotency-Key", "k"); code != 409 || !strings.Contains(body, httplock.CodeDone) || runs != 1 {
		t.Errorf("again: %d %q, %d runs", code, body, runs)
	}
}

func TestAStoredResponseIsTheFirstOne(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, tc := range map[string]struct {
		h    fiber.Handler
		code int
		body string
	}{
		"JSON":      {func(c fiber.Ctx) error { return c.Status(201).JSON(fiber.Map{"paid": 7}) }, 201, `{"paid":7}`},
		"no body":   {func(c fiber.Ctx) error { return c.SendStatus(204) }, 204, ""},
		"nothing":   {func(fiber.Ctx) error { return nil }, 200, ""},
		"not found": {func(fiber.Ctx) error { return fiber.ErrNotFound }, 404, "Not Found"},
	} {
		runs := 0
		outside := func(c fiber.Ctx) error {
			c.Set("X-Request-Id", c.Get("X-Request-Id"))
			return c.Next()
		}
		s := serve(t, fiberlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c fiber.Ctx) error {
			runs++
			c.Append("X-Receipt", "a")
			return tc.h(c)
		}, outside)
		for i := range 2 {
			id := fmt.Sprint(i)
			code, body, header := s.send(t, "/orders/1", "", "Idempotency-Key", name, "X-Request-Id", id)
			if code != tc.code || body != tc.body || (header.Get("Idempotency-Replayed") == "true") != (i == 1) {
				t.Errorf("%s, %d: %d %q %v", name, i, code, body, header)
			}
			if header.Get("X-Request-Id") != id || header.Get("X-Receipt") != "a" {
				t.Errorf("%s, %d: %v", name, i, header)
			}
			if name == "JSON" && !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
				t.Errorf("%s, %d: %v", name, i, header)
			}
		}
		if runs != 1 {
			t.Errorf("%s: %d runs", name, runs)
		}
	}
}

// recorded is a Locker that refuses every request and records its key.
type recorded struct {
	mu   sync.Mutex
	keys []string
}

func (l *recorded) Acquire(_ context.Context, r locker.Rule) (*locker.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = append(l.keys, r.Key)
	return nil, &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
}

// fasthttp reuses its memory. The next request must not change the key of the previous request.
func TestPartsOfFiberAreCopied(t *testing.T) {
	l := &recorded{}
	s := serve(t, fiberlock.MustNew(l, "order:{param.id}:{value.user}:{ip}:{body.sku}:{header.X-Tenant}"),
		func(fiber.Ctx) error { return nil },
		func(c fiber.Ctx) error {
			c.Locals("user", c.Get("X-User"))
			return c.Next()
		})
	const want = "order:aaaa:ann:127.0.0.1:pen:acme"
	code, body, header := s.send(t, "/orders/aaaa", `{"sku":"pen"}`, "X-User", "ann", "X-Tenant", "acme")
	if code != 409 || header.Get("Retry-After") == "" || !strings.Contains(body, httplock.CodeBusy) {
		t.Errorf("%d %v %s", code, header, body)
	}
	for range 20 {
		s.send(t, "/orders/bbbb", `{"sku":"ink"}`, "X-User", "bob", "X-Tenant", "umbr")
	}
	if len(l.keys) != 21 || l.keys[0] != want {
		t.Errorf("%d keys, the first one is %q, want %q", len(l.keys), l.keys[0], want)
	}
	wrong := serve(t, fiberlock.MustNew(l, "order:{param.number}"), func(fiber.Ctx) error { return nil })
	if code, body, _ := wrong.send(t, "/orders/1", ""); code != 500 || !strings.Contains(body, "lock-misconfigured") {
		t.Errorf("a parameter that the route has not: %d %s", code, body)
	}
}

// Fiber sends the reply when all handlers have returned. So fiberlock can replace a written reply.
func TestALostLockIsNoSuccess(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store, locker.WithTTL(300*time.Millisecond))
	s := serve(t, fiberlock.MustNew(l, "order:{param.id}"), func(c fiber.Ctx) error {
		lease, ok := fiberlock.FromContext(c)
		if !ok || lease.Fence() == 0 {
			t.Error("there is no lease")
		}
		c.Set("X-Own", "1")
		_ = c.SendString("paid")
		store.Steal(lease.Key())
		<-c.Context().Done()
		return nil
	}, func(c fiber.Ctx) error {
		c.Set("X-Outer", "1")
		return c.Next()
	})
	code, body, header := s.send(t, "/orders/1", "")
	if code != 503 || !strings.Contains(body, "lock-lost") || header.Get("X-Own") != "" || header.Get("X-Outer") != "1" ||
		header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s %v", code, body, header)
	}
}

func TestAPanicFindsTheLockReleased(t *testing.T) {
	store := lockertest.NewMemory()
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}"),
		func(fiber.Ctx) error { panic("out of ink") }, recovery.New())
	if code, _, _ := s.send(t, "/orders/1", ""); code != 500 || store.Len() != 0 {
		t.Errorf("%d, %d leases", code, store.Len())
	}
}

func TestRulesGuardFibersRoutes(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := fiberlock.FromRules(l, httplock.Rules{
		"POST /orders/:id<int>": {Key: "order:{param.id}"}, "POST /files/*": {Key: "file:{param.*}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	app := fiber.New()
	key := func(c fiber.Ctx) error {
		lease, _ := fiberlock.FromContext(c)
		return c.SendString(lease.Key())
	}
	guard.Handle(app, "post /orders/:id<int>", key)
	if err := guard.Validate(); err == nil || !strings.Contains(err.Error(), `rule "POST /files/*": no route`) {
		t.Error(err)
	}
	guard.Handle(app, "POST /files/*", key)
	guard.Handle(app, "POST /visits", func(fiber.Ctx) error { return nil })
	if err := guard.Validate(); err != nil || fmt.Sprint(guard.Unguarded()) != "[POST /visits]" {
		t.Error(err, guard.Unguarded())
	}
	s := start(t, app)
	for path, want := range map[string]string{"/orders/42": "order:42", "/files/a/b": "file:a/b"} {
		if code, body, _ := s.send(t, path, ""); code != 200 || body != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if _, err := fiberlock.FromRules(l, httplock.Rules{"POST /a/:id": {Key: "a:{param.x}"}}); err == nil || !strings.Contains(err.Error(), "the path has only id") {
		t.Error(err)
	}
}

// dial sends the text of a request, and leaves the connection open.
func (s *server) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// within waits until a condition holds.
func within(t *testing.T, what string, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !true(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

// One client sends only half a body, and another client does not read its response. Nevertheless
// 100 other clients get their responses.
func TestSlowClientsHoldNobodysLock(t *testing.T) {
	large := strings.Repeat("x", 8<<20)
	var running atomic.Int32
	s := serve(t, fiberlock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", httplock.WithWait(time.Minute)),
		func(c fiber.Ctx) error {
			running.Add(1)
			if string(c.Body()) == "large" {
				return c.SendString(large)
			}
			return c.SendString("paid")
		})
	const head = "POST /orders/1 HTTP/1.1\r\nHost: x\r\nContent-Length: "
	s.dial(t, head+"100\r\n\r\n{")
	s.dial(t, head+"5\r\n\r\nlarge")
	within(t, "the large response is made", func() bool { return running.Load() == 1 })
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if code, body, _ := s.send(t, "/orders/1", "{}"); code != 200 {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wg.Wait()
}

// An app with StreamRequestBody would pass a body to the handler while the body still arrives.
// Behind a lock, it has arrived before the lock is taken.
func TestAStreamedBodyArrivesBeforeTheLock(t *testing.T) {
	store := lockertest.NewMemory()
	app := fiber.New(fiber.Config{StreamRequestBody: true, BodyLimit: 40_000})
	app.Post("/stock", fiberlock.MustNew(lockertest.NewLocker(t, store), "stock:{body.sku}"), func(c fiber.Ctx) error {
		lease, _ := fiberlock.FromContext(c)
		return c.SendString(fmt.Sprint(lease.Key(), " ", len(c.Body())))
	})
	s := start(t, app)
	body := func(n int) string { return `{"sku":"pen","note":"` + strings.Repeat("x", n) + `"}` }
	s.dial(t, "POST /stock HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	short := body(30_000)
	if code, text, _ := s.send(t, "/stock", short); code != 200 || text != fmt.Sprint("stock:pen ", len(short)) {
		t.Errorf("%d %s", code, text)
	}
	// The unread rest of a body must not be read as the next request.
	long := body(300_000)
	conn := s.dial(t, fmt.Sprintf("POST /stock HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(long), long[:100_000]))
	if reply, _ := io.ReadAll(conn); !strings.HasPrefix(string(reply), "HTTP/1.1 413 ") || strings.Count(string(reply), "HTTP/1.1") != 1 {
		t.Errorf("a body that is too long: %s", reply)
	}
}
