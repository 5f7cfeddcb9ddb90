package keys_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v4"

	"github.com/latchkit/latchkit/contrib/echolock"
	"github.com/latchkit/latchkit/contrib/fiberlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A payment is a kind of handler: how it reads the id of an order, from where, and the key that
// fits.
type payment struct {
	key  httplock.Key
	read func(text string) (order string, err error)
	from string // "param", "query", "header", "cookie", or "body"
}

var errNoOrder = errors.New("there is no such order")

func number(text string) (string, error) {
	n, err := strconv.Atoi(text)
	return strconv.Itoa(n), err
}

func known(text string) (string, error) {
	if text = strings.ToLower(text); !strings.HasPrefix(text, "ann") {
		return "", errNoOrder
	}
	return text, nil
}

func dashless(text string) (string, error) {
	if text = strings.ReplaceAll(strings.ToLower(text), "-", ""); len(text) != 32 {
		return "", errNoOrder
	}
	return text, nil
}

func asItIs(text string) (string, error) { return text, nil }

var payments = map[string]payment{
	"number": {"number:{param.id|int}", number, "param"},
	"lower":  {"lower:{param.id|lower}", known, "param"},
	"uuid":   {"uuid:{param.id|uuid}", dashless, "param"},
	"text":   {"text:{param.id|text}", asItIs, "param"},
	"query":  {"query:{query.id|int}", number, "query"},
	"header": {"header:{header.Order|int}", number, "header"},
	"cookie": {"cookie:{cookie.order|int}", number, "cookie"},
	"body":   {"body:{body.id|int}", number, "body"},
}

// A bank counts the payments of each order.
type bank struct {
	mu   sync.Mutex
	paid map[string]int
}

// pay is the work of all handlers. It returns the status of the reply.
func (b *bank) pay(kind, text string) int {
	order, err := payments[kind].read(text)
	if err != nil {
		return http.StatusUnprocessableEntity
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[kind+" "+order]++
	return http.StatusOK
}

// bodyID reads {"id": …} as a handler does that takes numbers and texts.
func bodyID(data []byte) string {
	var order struct{ ID any }
	if json.Unmarshal(data, &order) != nil {
		return "x"
	}
	if f, ok := order.ID.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(order.ID)
}

// shops returns the address of a server with the payments, for each framework.
func shops(t *testing.T, b *bank) map[string]string {
	in := func() locker.Locker { return lockertest.NewLocker(t, lockertest.NewMemory()) }
	ofPlain, ofGin, ofEcho, ofFiber := in(), in(), in(), in()
	once := httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor, r.Wait = time.Hour, locker.NoWait })
	plain, g, e, f := http.NewServeMux(), gin.New(), echo.New(), fiber.New()
	e.HideBanner = true
	for kind, p := range payments {
		plain.Handle("POST /"+kind+"/{id}/pay", httplock.MustNew(ofPlain, p.key, once)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			cookie, _ := r.Cookie("order")
			if cookie == nil {
				cookie = new(http.Cookie)
			}
			w.WriteHeader(b.pay(kind, map[string]string{
				"param": r.PathValue("id"), "query": r.URL.Query().Get("id"), "header": r.Header.Get("Order"), "cookie": cookie.Value, "body": bodyID(body),
			}[p.from]))
		})))
		g.POST("/"+kind+"/:id/pay", ginlock.MustNew(ofGin, p.key, once), func(c *gin.Context) {
			body, _ := c.GetRawData()
			cookie, _ := c.Cookie("order")
			c.Status(b.pay(kind, map[string]string{
				"param": c.Param("id"), "query": c.Query("id"), "header": c.GetHeader("Order"), "cookie": cookie, "body": bodyID(body),
			}[p.from]))
		})
		e.POST("/"+kind+"/:id/pay", func(c echo.Context) error {
			body, _ := io.ReadAll(c.Request().Body)
			cookie, _ := c.Cookie("order")
			if cookie == nil {
				cookie = new(http.Cookie)
			}
			return c.NoContent(b.pay(kind, map[string]string{
				"param": c.Param("id"), "query": c.QueryParam("id"), "header": c.Request().Header.Get("Order"), "cookie": cookie.Value, "body": bodyID(body),
			}[p.from]))
		}, echolock.MustNew(ofEcho, p.key, once))
		f.Post("/"+kind+"/:id/pay", fiberlock.MustNew(ofFiber, p.key, once), func(c fiber.Ctx) error {
			return c.SendStatus(b.pay(kind, map[string]string{
				"param": c.Params("id"), "query": c.Query("id"), "header": c.Get("Order"), "cookie": c.Cookies("order"), "body": bodyID(c.Body()),
			}[p.from]))
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = f.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() { _ = f.Shutdown() })
	return map[string]string{"net/http": serve(t, plain), "Gin": serve(t, g), "Echo": serve(t, e), "Fiber": listener.Addr().String()}
}

// An order is paid once, however a client spells its id. A spelling that is not understood is
// refused, and pays nothing.
func TestAnOrderIsPaidOnceUnderEachSpelling(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	const id = "0198F3A2-5A0E-7CC3-8D1F-2B7D1C2F0A11"
	ints := []string{"42", "042", "%2B42", "+42", "%2B042", "%34%32", "042%20", "%2042", "4_2", "0x2a", "42.0", "４２", "42%2F", "42%00", "18446744073709551658", "-0"}
	spellings := map[string][]string{
		"number": ints,
		"query":  append(ints, "42&id=042", "42&ID=42", "42%26"),
		"header": {"42", "042", "+42", " 42", "4_2", "42, 42"},
		"cookie": {"42", "042", "+42", "%3442", "\"42\"", "42; order=042"},
		"lower":  {"ann", "Ann", "ANN", "%41nn", "bob"},
		"uuid":   {id, strings.ToLower(id), strings.ReplaceAll(id, "-", ""), strings.ReplaceAll(strings.ToLower(id), "-", ""), id + "0"},
		"text":   {"a%2Fb", "a%2fb", "%61%2Fb", "a/b", "A%2Fb", "a%252Fb"},
		"body":   {"42", `"42"`, "42.0", "4.2e1", `"042"`, `"+42"`, `" 42"`, `"4_2"`, `42,"ID":42`, "18446744073709551658"},
	}
	b := &bank{paid: make(map[string]int)}
	for framework, addr := range shops(t, b) {
		t.Run(framework, func(t *testing.T) {
			clear(b.paid)
			for kind, ways := range spellings {
				for i, way := range ways {
					target, head, body := "/"+kind+"/7/pay", "", ""
					switch payments[kind].from {
					case "param":
						target = "/" + kind + "/" + way + "/pay"
					case "query":
						target += "?id=" + way
					case "header":
						head = "Order: " + way + "\r\n"
					case "cookie":
						head = "Cookie: order=" + way + "\r\n"
					case "body":
						body = `{"id":` + way + `}`
					}
					raw := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
						target, head, len(body), body)
					res := send(t, addr, raw) //nolint:bodyclose // send has closed it
					switch {
					case res == nil:
					case i == 0 && res.StatusCode != http.StatusOK && kind != "text": // Gin has no route for a/b
						t.Errorf("%s %s: the first payment is answered %d", kind, way, res.StatusCode)
					case res.StatusCode >= http.StatusInternalServerError:
						t.Errorf("%s %s: %d", kind, way, res.StatusCode)
					}
				}
			}
			for order, n := range b.paid {
				if n != 1 {
					t.Errorf("%s was paid %d times", order, n)
				}
			}
			if len(b.paid) < 8 {
				t.Errorf("paid: %v", b.paid)
			}
		})
	}
}

// Each framework refuses the table with which README's payment was made three times.
func TestEachFrameworkRefusesOnceForWithoutASpelling(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, from := range map[string]func(httplock.Rules) error{
		"httplock":  func(r httplock.Rules) error { _, err := httplock.FromRules(l, r); return err },
		"ginlock":   func(r httplock.Rules) error { _, err := ginlock.FromRules(l, r); return err },
		"echolock":  func(r httplock.Rules) error { _, err := echolock.FromRules(l, r); return err },
		"fiberlock": func(r httplock.Rules) error { _, err := fiberlock.FromRules(l, r); return err },
	} {
		route := map[bool]string{true: "POST /orders/{id}/pay", false: "POST /orders/:id/pay"}[name == "httplock"]
		err := from(httplock.Rules{route: {Key: "order:{param.id}", OnceFor: time.Hour}})
		if err == nil || !strings.Contains(err.Error(), name+`: rule "`+route+`": `) || !strings.Contains(err.Error(), `write "order:{param.id|int}" for whole numbers`) {
			t.Errorf("%s: %v", name, err)
		}
		if err := from(httplock.Rules{route: {Key: "order:{param.id|int}", OnceFor: time.Hour}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
