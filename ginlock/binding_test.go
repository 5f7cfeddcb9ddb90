package ginlock_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Gin's Bind chooses its parser by the method and by the text of the Content-Type. Where Gin does
// not read JSON, a client could send one article in the JSON, to choose the lock, and another
// article for the handler, in the query or in a form.
func TestAKeyOfTheBodyIsWhatShouldBindReads(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	var key, bound string
	e := gin.New()
	e.Any("/reserve", ginlock.MustNew(l, "stock:{body.sku}"), func(c *gin.Context) {
		lease, _ := ginlock.FromContext(c)
		key = lease.Key()
		var order struct {
			Sku string `json:"sku" xml:"sku" yaml:"sku" toml:"sku"`
		}
		if err := c.ShouldBind(&order); err != nil {
			t.Errorf("%s %q: %v", c.Request.Method, c.GetHeader("Content-Type"), err)
		}
		bound = order.Sku
	})
	ran := 0
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		for _, contentType := range []string{
			"", "application/json", "application/json; charset=utf-8", "application/json ;charset=utf-8", "application/json;", " application/json",
			"Application/JSON", "APPLICATION/JSON", "application/json x", "application/json,text/plain", "application/vnd.api+json", "text/json",
			"application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "application/xml", "text/xml",
			"application/x-yaml", "application/yaml", "application/toml", "application/x-msgpack", "application/x-protobuf", "application/bson", ";", "x",
		} {
			for _, body := range []string{`{"sku":"decoy"}`, `{"sku":"decoy","x":"&Sku=GPU&sku=GPU&"}`, `{"sku":"decoy"} {"sku":"GPU"}`, `{"sku":"decoy","SKU":"GPU"}`} {
				r := httptest.NewRequestWithContext(t.Context(), method, "/reserve?Sku=GPU&sku=GPU", strings.NewReader(body))
				if contentType != "" {
					r.Header.Set("Content-Type", contentType)
				}
				key, bound = "", ""
				w := httptest.NewRecorder()
				e.ServeHTTP(w, r)
				switch {
				case key != "" && key != "stock:"+bound:
					t.Errorf("%s %q %s: the lock is %q, and ShouldBind reads %q", method, contentType, body, key, bound)
				case key != "":
					ran++
				case w.Code != http.StatusUnsupportedMediaType && w.Code != http.StatusBadRequest:
					t.Errorf("%s %q %s: %d %s", method, contentType, body, w.Code, w.Body)
				}
			}
		}
	}
	if ran < 20 {
		t.Errorf("only %d requests have run, so the table shows too little", ran)
	}
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/reserve?Sku=GPU", strings.NewReader(`{"sku":"decoy"}`))
	w := httptest.NewRecorder()
	if e.ServeHTTP(w, r); w.Code != 415 || !strings.Contains(w.Body.String(), httplock.CodeNotJSON) {
		t.Errorf("without a type: %d %s", w.Code, w.Body)
	}
}

// One session has one lock, in whatever way the client has escaped the cookie.
func TestAKeyOfACookieIsWhatGinReads(t *testing.T) {
	for _, cookie := range []string{"abc", "%61bc", "a%62c", "ab%63", "a+b", "%zz", `"abc"`} {
		var key, read string
		l := lockerFunc(func(r locker.Rule) error { key = r.Key; return locker.ErrBusy })
		e := gin.New()
		e.Use(func(c *gin.Context) { read, _ = c.Cookie("session") })
		e.POST("/cart", ginlock.MustNew(l, "{cookie.session}"), ok)
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/cart", http.NoBody)
		r.Header.Set("Cookie", "session="+cookie+"; session=other")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if key != read || read == "" && w.Code != http.StatusBadRequest {
			t.Errorf("%s: the key is %q, and Gin reads %q; %d", cookie, key, read, w.Code)
		}
	}
}
