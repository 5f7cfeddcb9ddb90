package framework

import (
	"net/http"
	"strings"
)

// NetHTTP has the methods of [Sources] for frameworks that read as net/http does.
type NetHTTP struct{}

// Query returns the first value, as r.URL.Query().Get does.
func (NetHTTP) Query(r *http.Request, name string) (string, error) {
	return r.URL.Query().Get(name), nil
}

// Header returns the first value, as r.Header.Get does. net/http moves the header Host to r.Host.
func (NetHTTP) Header(r *http.Request, name string) (string, error) {
	if strings.EqualFold(name, "Host") {
		return r.Host, nil
	}
	return r.Header.Get(name), nil
}

// Cookie returns the value of r.Cookie.
func (NetHTTP) Cookie(r *http.Request, name string) (string, error) {
	cookie, err := r.Cookie(name)
	if err != nil {
		return "", nil //nolint:nilerr // "" has the same meaning as ErrNoCookie: the part is missing
	}
	return cookie.Value, nil
}

// Body returns the body as it has arrived: net/http decodes no bodies.
func (NetHTTP) Body(r *http.Request, raw []byte, _ int64) ([]byte, error) { return Unencoded(r, raw) }
