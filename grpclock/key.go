package grpclock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
)

// A KeyFunc makes the key of a call from its request. [KeyOf] returns a KeyFunc.
type KeyFunc struct {
	of      func(req any) (string, error)
	request protoreflect.FullName // the type of the request; "" where it is not known
}

// KeyOf makes the key of a call with a function of its request. KeyOf is the fastest way to make a
// key. The compiler checks the fields that the function reads. The result "" is refused as a
// missing part. The result is used as it is, without encoding: make it with [key.Of] if a client
// can choose a part of it.
func KeyOf[Request any](of func(req Request) string) KeyFunc {
	var none Request
	f := KeyFunc{of: func(req any) (string, error) {
		r, ok := req.(Request)
		if !ok {
			return "", fmt.Errorf("the key is made of a %T, and the request is a %T", none, req)
		}
		return of(r), nil
	}}
	if m, ok := any(none).(proto.Message); ok {
		f.request = m.ProtoReflect().Descriptor().FullName()
	}
	return f
}

// key makes the key of a call with this request.
func (f KeyFunc) key(req any) (string, error) {
	k, err := f.of(req)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", locker.ErrInvalidRule, err)
	case k == "":
		return "", fmt.Errorf("%w: the request makes an empty key", locker.ErrInvalidKey)
	}
	return k, nil
}

type (
	source  = template.Source[*call]
	read    = template.Read[*call]
	readAll = template.ReadAll[*call]
)

// vocabulary has the parts of keys that the Rules add.
type vocabulary struct {
	secret []byte
	claims func(context.Context) map[string]any
}

// grammar returns the parts that keys can have if a call has this request. request is nil if it is
// unknown.
func (v *vocabulary) grammar(request protoreflect.MessageDescriptor) template.Grammar[*call] {
	return template.Grammar[*call]{Secret: v.secret, Sources: map[string]source{
		"req": {
			Noun:    "field",
			Bind:    func(path string) (read, error) { return bindField(request, path) },
			BindAll: func(path string) (readAll, error) { return bindFields(request, path) },
		},
		"meta":  {Noun: "metadata", Bind: bindMeta},
		"claim": {Noun: "claim", Bind: v.bindClaim},
		"peer":  {Noun: "address of the peer", Alone: true, Bind: bindPeer},
	}}
}

// bindMeta reads metadata. If there are several values, the first value counts.
func bindMeta(name string) (read, error) {
	name = strings.ToLower(name)
	return func(ctx context.Context, _ *call) (string, error) {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			return values[0], nil
		}
		return "", nil
	}, nil
}

func (v *vocabulary) bindClaim(name string) (read, error) {
	claims := v.claims
	if claims == nil {
		return nil, errors.New("the Rules do not know the claims of a call; give a function that finds them to Rules.WithClaims")
	}
	return func(ctx context.Context, _ *call) (string, error) { return template.Format(claims(ctx)[name]) }, nil
}

func bindPeer(string) (read, error) {
	return func(ctx context.Context, _ *call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", nil
		}
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			return host, nil
		}
		return p.Addr.String(), nil // an address that has no port, such as the path of a Unix socket
	}, nil
}
