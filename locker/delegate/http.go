package delegate

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Header is the header of an HTTP request that carries a delegation, in base64url.
const Header = "Latchkit-Lock"

// MetadataKey is the metadata of a gRPC call that carries a delegation.
const MetadataKey = "latchkit-lock-bin"

// Transport returns a RoundTripper that lets requests to the given hosts run under the leases in
// the contexts of the requests. It removes a delegation from requests to all other hosts. A host is
// written as in the URL: "inventory:8080", or "inventory" for the default port of the scheme. A nil
// base is http.DefaultTransport.
//
// A redirected request keeps the delegation only if its new target is one of the given hosts.
func Transport(base http.RoundTripper, s *Sender, hosts ...string) (http.RoundTripper, error) {
	switch {
	case s == nil:
		return nil, errors.New("delegate: Transport: the Sender is nil; make one with NewSender, and check its error")
	case len(hosts) == 0 || slices.Contains(hosts, ""):
		return nil, errors.New("delegate: Transport: name the hosts that get delegations, each as in its URL; there is no wildcard")
	}
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{base: base, sender: s}
	for _, h := range hosts {
		t.hosts = append(t.hosts, strings.ToLower(h))
	}
	return t, nil
}

type transport struct {
	base   http.RoundTripper
	sender *Sender
	hosts  []string
}

// RoundTrip sends r. If a delegation must be added or removed, RoundTrip sends a changed copy of r
// instead.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var token []byte
	if slices.Contains(t.hosts, strings.ToLower(r.URL.Host)) {
		var err error
		if token, err = t.sender.Token(r.Context()); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // a RoundTripper must close the body
			}
			return nil, fmt.Errorf("delegate: the lease cannot be delegated: %w", err)
		}
	}
	if _, there := r.Header[Header]; there || token != nil {
		r = r.Clone(r.Context())
		r.Header.Del(Header)
		if token != nil {
			r.Header.Set(Header, base64.RawURLEncoding.EncodeToString(token))
		}
	}
	return t.base.RoundTrip(r)
}

// Request returns a copy of request without its delegation header, so that no handler sends the
// delegation on. The copy's context has the delegation, for [Receiver.Acquire]. Even if Request
// returns [ErrMalformed], the copy has no delegation header.
func (r *Receiver) Request(request *http.Request) (*http.Request, error) {
	values, there := request.Header[Header]
	if !there {
		return request, nil
	}
	stripped := Strip(request)
	tokens := make([][]byte, len(values))
	for i, v := range values {
		if len(v) > base64.RawURLEncoding.EncodedLen(MaxToken) {
			return stripped, fmt.Errorf("%w: it has %d bytes", ErrMalformed, len(v))
		}
		token, err := base64.RawURLEncoding.Strict().DecodeString(v)
		if err != nil {
			return stripped, fmt.Errorf("%w: it is not base64url", ErrMalformed)
		}
		tokens[i] = token
	}
	ctx, err := r.With(stripped.Context(), tokens...)
	if err != nil {
		return stripped, err
	}
	return stripped.WithContext(ctx), nil
}

// Strip returns request without a delegation. Use Strip in servers that accept no delegations, so
// that no handler sends the delegation on.
func Strip(request *http.Request) *http.Request {
	if _, there := request.Header[Header]; !there {
		return request
	}
	stripped := request.WithContext(request.Context())
	stripped.Header = request.Header.Clone()
	stripped.Header.Del(Header)
	return stripped
}
