package ginlock_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
)

// A shop holds the lock of an order and calls the stock, which wants the same lock. With a
// delegation, the call joins the lock. Without a delegation, the call is refused.
func TestAServiceThatIsCalledJoinsItsCallersLock(t *testing.T) {
	redisServer := redistest.Shared(t)
	shopLocker, stockLocker := onRedis(t, redisServer.Client(t)), onRedis(t, redisServer.Client(t))

	var came string // the delegation header that the last handler of the stock service has received
	stock := gin.New()
	answer := func(c *gin.Context) {
		lease, _ := ginlock.FromContext(c)
		came = c.GetHeader(delegate.Header)
		c.String(http.StatusOK, "%d", lease.Fence())
	}
	noWait := ginlock.WithWait(locker.NoWait)
	stock.POST("/joins/:id", ginlock.New(stockLocker, "order:{param.id}", noWait, ginlock.WithDelegation()), answer)
	stock.POST("/alone/:id", ginlock.New(stockLocker, "order:{param.id}", noWait), answer)
	stock.POST("/twice/:id", ginlock.New(stockLocker, "stock:{param.id}", noWait, ginlock.WithDelegation()),
		ginlock.New(stockLocker, "order:{param.id}", noWait, ginlock.WithDelegation()), answer)
	stock.POST("/held-back/:id", ginlock.New(stockLocker, "order:{param.id}", noWait, ginlock.WithDelegation(), ginlock.WithBufferedResponse(100)), answer)
	plain := http.NewServeMux()
	plain.Handle("POST /plain/{id}", httplock.New(stockLocker, "order:{param.id}", noWait, httplock.WithDelegation())(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lease, _ := httplock.FromContext(r)
			came = r.Header.Get(delegate.Header)
			_, _ = fmt.Fprint(w, lease.Fence())
		})))
	plain.Handle("/", stock)
	stockServer := httptest.NewServer(plain)
	defer stockServer.Close()

	sender, err := delegate.NewSender()
	if err != nil {
		t.Fatal(err)
	}
	var shown string // the delegation that an attacker has overheard
	transport, err := delegate.Transport(overheard{&shown}, sender, strings.TrimPrefix(stockServer.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, client *http.Client, path, delegation string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, stockServer.URL+path, http.NoBody)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		if delegation != "" {
			r.Header.Set(delegate.Header, delegation)
		}
		res, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, string(body)
	}

	shop := engine(nil, ginlock.New(shopLocker, "order:{param.id}"), func(c *gin.Context) {
		lease, _ := ginlock.FromContext(c)
		for _, path := range []string{"/joins/42", "/twice/42", "/held-back/42", "/plain/42"} {
			code, body := ask(c.Request.Context(), &http.Client{Transport: transport}, path, "")
			if code != http.StatusOK || body != fmt.Sprint(lease.Fence()) || came != "" {
				t.Errorf("%s: %d %s, want fence %d; the handler saw %q", path, code, body, lease.Fence(), came)
			}
		}
		if code, body := ask(c.Request.Context(), &http.Client{Transport: transport}, "/alone/42", ""); code != http.StatusConflict {
			t.Errorf("a service that takes no delegations: %d %s", code, body)
		}
		if code, body := ask(c.Request.Context(), http.DefaultClient, "/joins/42", ""); code != http.StatusConflict {
			t.Errorf("a client that sends none: %d %s", code, body)
		}
		ok(c)
	})
	if w := post(t.Context(), shop, "/orders/42"); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if shown == "" {
		t.Fatal("no delegation was sent")
	}
	for path, want := range map[string]string{"/joins/42": "delegation-refused", "/plain/42": "delegation-refused"} {
		if code, body := ask(t.Context(), http.DefaultClient, path, shown); code != http.StatusPreconditionFailed || !strings.Contains(body, want) {
			t.Errorf("%s, when the caller's lock is over: %d %s", path, code, body)
		}
		if code, body := ask(t.Context(), http.DefaultClient, path, "no delegation"); code != http.StatusBadRequest || !strings.Contains(body, "delegation-invalid") {
			t.Errorf("%s, malformed: %d %s", path, code, body)
		}
	}
	if code, body := ask(t.Context(), http.DefaultClient, "/alone/42", shown); code != http.StatusOK || came != "" {
		t.Errorf("where none are taken: %d %s, the handler saw %q", code, body, came)
	}
}

// overheard is a RoundTripper that records the delegation in each request.
type overheard struct{ shown *string }

func (o overheard) RoundTrip(r *http.Request) (*http.Response, error) {
	if d := r.Header.Get(delegate.Header); d != "" {
		*o.shown = d
	}
	return http.DefaultTransport.RoundTrip(r)
}

func TestOnlyLeasesThatCanBeJoinedAreDelegated(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	if got := panics(func() { ginlock.New(l, "a", ginlock.WithDelegation()) }); !strings.HasPrefix(got, "ginlock: New: WithDelegation: ") || !strings.Contains(got, "cannot be joined") {
		t.Errorf("%q", got)
	}
}
