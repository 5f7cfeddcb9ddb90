package ginlock_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// request returns a request with every part that a key can contain.
func request(t testing.TB, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42?page=7&page=8&q=a%3Ab&empty=", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Tenant", "acme")
	r.Header.Set("X-Forwarded-For", "203.0.113.9")
	r.AddCookie(&http.Cookie{Name: "session", Value: "s3"})
	r.RemoteAddr = "192.0.2.1:1234"
	r.Host = "shop.example"
	return r
}

func TestEachPartOfARequestIsRead(t *testing.T) {
	const body = `{"sku": "a-1", "count": 2.0, "user": {"id": 17}, "items": [{"sku": "x"}, {"sku": "y"}]}`
	secret := []byte("0123456789abcdef")
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("acme"))
	opts := []httplock.Option{
		httplock.WithSecret(secret),
		ginlock.WithClaims(func(c *gin.Context) map[string]any { return c.GetStringMap("claims") }),
		httplock.WithPart("plan", func(r *http.Request) (string, error) { return "plan of " + r.Host, nil }),
	}
	for k, want := range map[httplock.Key]string{
		"order:{param.id}":                    "order:42",
		"q:{query.page}":                      "q:7",
		"q:{query.q}":                         "q:a%3Ab",
		"h:{header.x-tenant}":                 "h:acme",
		"h:{header.Host}":                     "h:shop.example",
		"c:{cookie.session}":                  "c:s3",
		"ip:{ip}":                             "ip:192.0.2.1",
		"sub:{claim.sub}":                     "sub:ann",
		"n:{claim.n}":                         "n:9",
		"v:{value.shard}":                     "v:3",
		"b:{body.sku}:{body.count}":           "b:a-1:2",
		"b:{body.SKU}":                        "b:a-1",
		"b:{body.user.id}:{body.items.1.sku}": "b:17:y",
		"p:{plan}":                            "p:plan of shop.example",
		"i:{idempotency-key}":                 "i:k1",
		"h:{header.X-Tenant|hmac}":            "h:~" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)),
	} {
		var got locker.Rule
		l := lockerFunc(func(r locker.Rule) error { got = r; return locker.ErrBusy })
		e := gin.New()
		e.Use(func(c *gin.Context) {
			c.Set("claims", map[string]any{"sub": "ann", "n": 9.0})
			c.Set("shard", 3)
		})
		if err := e.SetTrustedProxies(nil); err != nil {
			t.Fatal(err)
		}
		e.POST("/orders/:id", ginlock.MustNew(l, k, opts...), ok)
		w, r := httptest.NewRecorder(), request(t, body)
		r.Header.Set("Idempotency-Key", `"k1"`)
		e.ServeHTTP(w, r)
		if got.Key != want {
			t.Errorf("%s is %q, want %q; %s", k, got.Key, want, w.Body)
		}
	}
}

func TestABodyThatWasReadForTheKeyIsStillThere(t *testing.T) {
	const body = `{"sku": "a-1", "count": 2}`
	type order struct {
		SKU   string `json:"sku"`
		Count int    `json:"count"`
	}
	want := order{"a-1", 2}
	for name, tc := range map[string]struct {
		before gin.HandlerFunc
		bind   func(c *gin.Context) (order, error)
	}{
		"ShouldBindJSON": {bind: func(c *gin.Context) (o order, err error) { return o, c.ShouldBindJSON(&o) }},
		"ShouldBindBodyWith, before and after": {
			before: func(c *gin.Context) {
				var o order
				if err := c.ShouldBindBodyWith(&o, binding.JSON); err != nil || o != want {
					t.Errorf("before: %+v, %v", o, err)
				}
			},
			bind: func(c *gin.Context) (o order, err error) { return o, c.ShouldBindBodyWith(&o, binding.JSON) },
		},
		"ShouldBindBodyWith before, ShouldBindJSON after": {
			before: func(c *gin.Context) {
				var o order
				if err := c.ShouldBindBodyWith(&o, binding.JSON); err != nil {
					t.Error(err)
				}
			},
			bind: func(c *gin.Context) (o order, err error) { return o, c.ShouldBindJSON(&o) },
		},
		"io.ReadAll": {bind: func(c *gin.Context) (o order, err error) {
			data, err := io.ReadAll(c.Request.Body)
			if err != nil || !bytes.Equal(data, []byte(body)) {
				t.Errorf("%s, %v", data, err)
			}
			return o, json.Unmarshal(data, &o)
		}},
	} {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		e := gin.New()
		if tc.before != nil {
			e.Use(tc.before)
		}
		e.POST("/orders/:id", ginlock.MustNew(l, "sku:{body.sku}:{body.count}"), func(c *gin.Context) {
			if lease, _ := ginlock.FromContext(c); lease.Key() != "sku:a-1:2" {
				t.Errorf("%s: %v", name, lease)
			}
			if got, err := tc.bind(c); err != nil || got != want {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			ok(c)
		})
		w := httptest.NewRecorder()
		e.ServeHTTP(w, request(t, body))
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// Gin's Bind chooses its parser by the method and by the text of the Content-Type. Where Gin does
// not read JSON, a client could send one article in the JSON, to choose the lock, and another
// article for the handler, in the query or in a form.
func TestAKeyReadsABodyThatShouldBindReadsAsJSON(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	e.Any("/orders/:id", ginlock.MustNew(l, "stock:{body.sku}"), ok)
	for _, tc := range []struct {
		method, contentType string
		code                int
	}{
		{"POST", "application/json", 200}, {"PUT", "application/json; charset=utf-8", 200}, {"GET", "application/json", 415}, {"POST", "", 415},
		{"POST", "Application/JSON", 415}, {"POST", "application/x-www-form-urlencoded", 415}, {"POST", "text/plain", 415},
	} {
		r := request(t, `{"sku":"decoy","x":"&sku=GPU&"}`)
		r.Method = tc.method
		r.Header.Set("Content-Type", tc.contentType)
		w := httptest.NewRecorder()
		if e.ServeHTTP(w, r); w.Code != tc.code || tc.code == 415 && !strings.Contains(w.Body.String(), httplock.CodeNotJSON) {
			t.Errorf("%s %q: %d %s", tc.method, tc.contentType, w.Code, w.Body)
		}
	}
}
