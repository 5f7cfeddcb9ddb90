package keys_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// recipe makes a request from the bytes of a fuzzer. Each byte chooses a word from a list of words
// that parsers treat in different ways, or a piece of the fuzzer's own text.
type recipe struct {
	choices []byte
	text    string
}

func (r *recipe) number(limit int) int {
	if len(r.choices) == 0 {
		return 0
	}
	n := int(r.choices[0]) % limit
	r.choices = r.choices[1:]
	return n
}

func (r *recipe) pick(words []string) string {
	n := r.number(len(words) + 1)
	if n < len(words) {
		return words[n]
	}
	length := min(r.number(8), len(r.text))
	piece := r.text[:length]
	r.text = r.text[length:]
	return piece
}

func (r *recipe) some(words []string, most int) string {
	var b strings.Builder
	for range r.number(most + 1) {
		b.WriteString(r.pick(words))
	}
	return b.String()
}

var (
	methods = []string{"POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	queries = []string{
		"id=12", "&", "id=", "12", "GPU", ";", "%69d=7", "ID=9", "id[]=3", "[id]=4", "id.=5", "%", "%zz", "+", "%00", "%2", "é", "#", "=", "\"", "?", ",", "%26", "id", "x=1", "iD=8", "%3B",
	}
	headers = []string{
		"X-Tenant: acme\r\n", "x-tenant: other\r\n", "X-Tenant:\r\n", "X_Tenant: low\r\n", "X-TENANT: \tbig \r\n", "X-Tenant: a, b\r\n", "X-Tenant: é\r\n",
		"X-Tenant : spaced\r\n", "X-Tenant: folded\r\n more\r\n", "X-tenant: a:b\r\n", "X-Tenant: \"q\"\r\n", "X-Tenant.: dot\r\n", "X[Tenant]: br\r\n",
	}
	cookies = []string{
		"Cookie: ", "session=abc", "; ", "session=", "%61bc", "session=é", "\"q\"", "\\", "Session=x", " ", ",", "=", "session", "+", "%zz", ";", "other=1", "session[]=z", "\r\nCookie: session=two", "\r\n",
	}
	segments = []string{"12", "%31%32", "%2F", "%20", "+", ";", "..", "%", "é", ":", "*", "%00", "a", ".", "%25", "x.y", "%3F", "?q"}
	types    = []string{
		"Content-Type: application/json\r\n", "Content-Type: application/x-www-form-urlencoded\r\n", "Content-Type: Application/JSON\r\n", "Content-Type: application/vnd.api+json\r\n", "",
		"Content-Type: application/json; charset=utf-8\r\n", "Content-Type: application/json x\r\n", "Content-Type: application/json;\r\n", "Content-Type:  application/json ;x\r\n",
		"Content-Type: text/json\r\n", "Content-Type: application/xml\r\n", "Content-Type: application/x-yaml\r\n", "Content-Type: text/plain\r\n", "Content-Type: application/cbor\r\n",
		"Content-Type: multipart/form-data; boundary=x\r\n", "Content-Type: application/x+json;q=+xml\r\n", "Content-Type: application/json,text/plain\r\n", "Content-Type: ;\r\n",
	}
	encodings = []string{
		"", "Content-Encoding: gzip\r\n", "Content-Encoding: deflate\r\n", "Content-Encoding: br\r\n", "Content-Encoding: identity\r\n", "Content-Encoding: GZIP\r\n",
		"Content-Encoding: gzip, deflate\r\n", "Content-Encoding: x\r\n", "Content-Encoding: zstd\r\n", "Content-Encoding: identity, identity\r\n",
	}
	bodies = []string{
		`{"sku":"pen"}`, `{`, `"sku":"decoy"`, `,`, `}`, `"SKU":"GPU"`, `"sku":5`, `"sku":1e2`, `"sku":null`, `"ſku":"long"`, `"\u0073ku":"esc"`, " ", "\n", "\ufeff", `"sku":"\ud800"`,
		`"sku":true`, `"sku":["a"]`, `"items":[{"sku":"a"},{"sku":"b"}]`, `"items":[]`, `{"sku":"GPU"}`, `Sku=GPU&sku=GPU`, `"sku":12345678901234567890`, `"sku":-0`, `"sku":1.0`, "\x00", "\xff",
		`"sku":"a:b"`, `"x":{"sku":"in"}`, `"sku":""`, `"sku":"pen"`, `<a><sku>GPU</sku></a>`, "sku: GPU\n",
	}
	bodyPaths = []string{"/body", "/number", "/items"}
)

// raw returns a request. The server need not accept it.
func (r *recipe) raw() []byte {
	source := r.number(6)
	method, head, body := r.pick(methods), "", []byte(nil)
	var target string
	switch source {
	case 0:
		target = "/query?" + r.some(queries, 7)
	case 1:
		target, head = "/header", r.some(headers, 4)
	case 2:
		target, head = "/cookie", strings.TrimSuffix(r.some(cookies, 9), "\r\n")+"\r\n"
	case 3:
		target = "/param/" + r.some(segments, 5)
	default:
		target = bodyPaths[r.number(len(bodyPaths))] + "?" + r.some(queries[:6], 2)
		head = r.pick(types)
		if r.number(8) == 7 {
			head += r.pick(types)
		}
		head += r.pick(encodings)
		body = compress(r.number(4), []byte(r.some(bodies, 7)))
	}
	switch r.number(6) {
	case 5:
		head += "Transfer-Encoding: chunked\r\n"
		body = fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		if bytes.HasPrefix(body, []byte("0\r\n\r\n\r\n")) {
			body = []byte("0\r\n\r\n")
		}
	default:
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n%s", method, target, head, body)
}

func compress(how int, body []byte) []byte {
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case 1:
		w = gzip.NewWriter(&b)
	case 2:
		w, _ = flate.NewWriter(&b, 1)
	case 3:
		w = zlib.NewWriter(&b)
	default:
		return body
	}
	_, _ = w.Write(body)
	_ = w.Close()
	return b.Bytes()
}

// seen is what a guarded handler tells the test: the keys that are locked, and the values that the
// framework's methods and binders gave the handler. Each reading is a list, because a key with
// {body.items.*.sku} stands for several.
type seen struct {
	// The keys and values are bytes, because JSON changes a text that is not valid UTF-8.
	Keys     [][]byte   `json:"keys"`
	Readings [][][]byte `json:"readings"`
}

const seenHeader = "Seen"

// tell returns the value of the header Seen for a handler that holds leases.
func tell(leases []*locker.Lease, readings ...[]string) string {
	var s seen
	for _, reading := range readings {
		var values [][]byte
		for _, value := range reading {
			values = append(values, []byte(value))
		}
		s.Readings = append(s.Readings, values)
	}
	for _, lease := range leases {
		s.Keys = append(s.Keys, []byte(lease.Key()))
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(text)
}

// one is the reading of a single value.
func one(value string) []string { return []string{value} }

// bound is a reading by a binder. A binder that fails lets the handler refuse the request.
func bound(err error, value string) [][]string {
	if err != nil {
		return nil
	}
	return [][]string{{value}}
}

// send sends a request over a connection of its own, and returns the response; nil if the server
// sends none.
func send(t *testing.T, addr string, raw []byte) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Write(raw); err != nil {
		return nil // the server has refused the head
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: strings.Split(string(raw[:min(len(raw), 5)]), " ")[0]})
	if err != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res
}

// compare reports whether the handler of a request has run. It fails if a value that the handler
// can read is not the value in the keys.
func compare(t *testing.T, source string, raw []byte, res *http.Response) bool {
	t.Helper()
	if res == nil || res.Header.Get(seenHeader) == "" {
		return false
	}
	text, err := base64.StdEncoding.DecodeString(res.Header.Get(seenHeader))
	if err != nil {
		t.Fatal(err)
	}
	var s seen
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, k := range s.Keys {
		keys = append(keys, string(k))
	}
	slices.Sort(keys)
	for _, reading := range s.Readings {
		var want []string
		for _, value := range reading {
			want = append(want, key.Of(source, string(value)))
		}
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(keys, want) {
			t.Errorf("the locks are %q, and the handler reads %q of\n%q", keys, reading, raw)
		}
	}
	return true
}

// fuzzing reports whether the test was started with -fuzz.
func fuzzing() bool { return flag.Lookup("test.fuzz").Value.String() != "" }

// fuzz sends requests to the server at addr, and compares.
func fuzz(f *testing.F, addr string) {
	ran := 0
	f.Cleanup(func() {
		if !fuzzing() && ran < 30 {
			f.Errorf("only %d of the requests have run a handler, so the corpus shows too little", ran)
		}
	})
	for _, s := range corpus() {
		f.Add(s, "sku=;\"%")
	}
	f.Fuzz(func(t *testing.T, choices []byte, text string) {
		raw := (&recipe{choices, text}).raw()
		source, _, _ := strings.Cut(strings.TrimPrefix(strings.Split(string(raw), " ")[1], "/"), "?")
		source, _, _ = strings.Cut(source, "/")
		if compare(t, source, raw, send(t, addr, raw)) { //nolint:bodyclose // send has read and closed the body
			ran++
		}
	})
}

// corpus has each pair of words of each source.
func corpus() (all [][]byte) {
	for i := range queries {
		all = append(all, []byte{0, 0, 3, 0, 1, byte(i)}, []byte{0, 1, 3, byte(i), 1, 0})
	}
	for i := range headers {
		all = append(all, []byte{1, 0, 2, 0, byte(i)}, []byte{1, 0, 2, byte(i), 0})
	}
	for i := range cookies {
		all = append(all, []byte{2, 0, 4, 0, 1, 2, byte(i)}, []byte{2, 0, 4, 0, byte(i), 2, 1}, []byte{2, 0, 3, 0, 3, byte(i)})
	}
	for i := range segments {
		all = append(all, []byte{3, 0, 2, 0, byte(i)}, []byte{3, 0, 1, byte(i)})
	}
	for i := range types {
		for m := range methods {
			all = append(all, []byte{4, byte(m), 0, 0, byte(i), 0, 0, 0, 1, 0})
		}
	}
	for i := range encodings {
		for how := range byte(4) {
			all = append(all, []byte{4, 0, 0, 0, 0, 0, byte(i), how, 1, 0})
		}
	}
	for i := range bodies {
		for p := range bodyPaths {
			all = append(all, []byte{4, 0, byte(p), 0, 0, 0, 0, 0, 3, 1, byte(i), 4}, []byte{4, 0, byte(p), 0, 0, 0, 0, 0, 5, 1, 2, 3, byte(i), 4}, []byte{4, 0, byte(p), 0, 0, 0, 0, 0, 2, 0, byte(i)})
		}
	}
	return all
}
