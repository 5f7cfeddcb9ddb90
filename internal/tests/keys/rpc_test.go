package keys_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
)

// rpcTemplates has a key for each source. The name of the key is the source.
var rpcTemplates = grpclock.RuleMap{
	shop.Shop_Place_FullMethodName: {Key: "meta:{meta.x-tenant}"},
	shop.Shop_Move_FullMethodName:  {Key: "bin:{meta.x-tenant-bin}"},
	shop.Shop_Once_FullMethodName:  {Key: "claim:{claim.sub}"},
}

// sources has the methods of rpcTemplates.
var sources = []string{"meta", "bin", "claim"}

type claimsKey struct{}

// claimsOf reads the claims from a header, as authentication would from a token.
func claimsOf(token string) map[string]any {
	var claims map[string]any
	d := json.NewDecoder(bytes.NewReader([]byte(token)))
	if d.Decode(&claims) != nil {
		return nil
	}
	return claims
}

func rpcRules() *grpclock.Rules {
	return grpclock.FromMap(rpcTemplates).WithClaims(func(ctx context.Context) map[string]any {
		claims, _ := ctx.Value(claimsKey{}).(map[string]any)
		return claims
	})
}

// readClaim reads the subject as handlers do.
func readClaim(ctx context.Context) [][]string {
	claims, _ := ctx.Value(claimsKey{}).(map[string]any)
	switch sub := claims["sub"].(type) {
	case string:
		return [][]string{one(sub)}
	case float64:
		return [][]string{one(strconv.FormatFloat(sub+0, 'f', -1, 64))} // -0 and 0 are one number
	}
	text, _ := template.Format(claims["sub"])
	return [][]string{one(text)}
}

func readMetadata(ctx context.Context, source string) [][]string {
	name := map[string]string{"meta": "X-Tenant", "bin": "X-Tenant-Bin"}[source]
	if name == "" {
		return readClaim(ctx)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	var first string
	if values := md.Get(name); len(values) > 0 {
		first = values[0]
	}
	return [][]string{one(first), one(metadata.ValueFromIncomingContext(ctx, name)[0])}
}

var fields = []hpack.HeaderField{
	{Name: "x-tenant", Value: "acme"}, {Name: "x-tenant", Value: "other"}, {Name: "x-tenant", Value: ""}, {Name: "X-Tenant", Value: "upper"}, {Name: "x_tenant", Value: "low"},
	{Name: "x-tenant", Value: "a,b"}, {Name: "x-tenant", Value: "é"}, {Name: "x-tenant", Value: " x "}, {Name: "x-tenant", Value: "a:b"},
	{Name: "x-tenant-bin", Value: "YQ"}, {Name: "x-tenant-bin", Value: "YQ=="}, {Name: "x-tenant-bin", Value: "YQ,Yg"}, {Name: "x-tenant-bin", Value: "###"}, {Name: "x-tenant-bin", Value: ""},
	{Name: "x-tenant-bin", Value: "AP8"}, {Name: "authorization", Value: `{"sub":"ann"}`}, {Name: "authorization", Value: `{"sub":5}`}, {Name: "authorization", Value: `{"sub":1e2}`},
	{Name: "authorization", Value: `{"sub":"5","SUB":"7"}`}, {Name: "authorization", Value: `{"sub":true}`}, {Name: "authorization", Value: `{"sub":null}`}, {Name: "authorization", Value: `{"sub":"a:b"}`},
	{Name: "authorization", Value: `{"sub":["x"]}`}, {Name: "authorization", Value: `{"sub":1.5}`},
}

// field chooses a header, and sometimes its value from the fuzzer's text.
func (r *recipe) field() hpack.HeaderField {
	f := fields[r.number(len(fields))]
	if r.number(6) == 5 {
		f.Value = r.pick([]string{"x", "%41", "\"q\"", "YWI", `{"sub":"t"}`, `{"sub":-0}`, `{"sub":9007199254740993}`})
	}
	return f
}

func rpcCorpus() (all [][]byte) {
	for i := range fields {
		for s := range sources {
			all = append(all, []byte{byte(s), 1, byte(i), 0}, []byte{byte(s), 2, byte(i), 0, byte((i + 1) % len(fields)), 0}, []byte{byte(s), 2, byte(i), 0, byte((i + 9) % len(fields)), 0})
		}
	}
	for i := 9; i < 15; i++ { // each pair of values of the binary header
		for j := 9; j < 15; j++ {
			all = append(all, []byte{1, 2, byte(i), 0, byte(j), 0})
		}
	}
	return all
}

// fuzzRPC sends calls, and compares.
func fuzzRPC(f *testing.F, call func(t *testing.T, method string, fields []hpack.HeaderField) *http.Response) {
	ran := 0
	f.Cleanup(func() {
		if !fuzzing() && ran < 20 {
			f.Errorf("only %d of the calls have run a handler, so the corpus shows too little", ran)
		}
	})
	methods := []string{shop.Shop_Place_FullMethodName, shop.Shop_Move_FullMethodName, shop.Shop_Once_FullMethodName}
	for _, c := range rpcCorpus() {
		f.Add(c, `{"sub":"t"}`)
	}
	f.Fuzz(func(t *testing.T, choices []byte, text string) {
		r := &recipe{choices, text}
		n := r.number(len(sources))
		var with []hpack.HeaderField
		for range r.number(5) {
			with = append(with, r.field())
		}
		if compare(t, sources[n], fmt.Appendf(nil, "%s %v", methods[n], with), call(t, methods[n], with)) { //nolint:bodyclose // call has read and closed the body
			ran++
		}
	})
}

type rpcService struct{ shop.UnimplementedShopServer }

func (s *rpcService) answer(ctx context.Context, source string) (*shop.Receipt, error) {
	err := grpc.SetHeader(ctx, metadata.Pairs(seenHeader, tell(locker.LeasesFromContext(ctx), readMetadata(ctx, source)...)))
	return &shop.Receipt{}, err
}
func (s *rpcService) Place(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
	return s.answer(ctx, "meta")
}
func (s *rpcService) Move(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
	return s.answer(ctx, "bin")
}
func (s *rpcService) Once(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
	return s.answer(ctx, "claim")
}

func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if tokens := metadata.ValueFromIncomingContext(ctx, "authorization"); len(tokens) > 0 {
		ctx = context.WithValue(ctx, claimsKey{}, claimsOf(tokens[0]))
	}
	return next(ctx, req)
}

func FuzzGRPC(f *testing.F) {
	rules := rpcRules()
	options, err := grpclock.ServerOptions(newLocker(f), rules)
	if err != nil {
		f.Fatal(err)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(authenticate)}, options...)...)
	shop.RegisterShopServer(server, &rpcService{})
	if err := rules.Bind(server); err != nil {
		f.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	f.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			f.Error(err)
		}
	})
	fuzzRPC(f, func(t *testing.T, method string, fields []hpack.HeaderField) *http.Response {
		return callGRPC(t, listener.Addr().String(), method, fields)
	})
}

// callGRPC sends the frames of a call with an empty message, and with header fields that no client
// of gRPC would send.
func callGRPC(t *testing.T, addr, method string, with []hpack.HeaderField) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "h"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, with...) {
		if err := enc.WriteField(f); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings() // a server that has closed the connection is noticed below
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, true, make([]byte, 5))
	res := &http.Response{Header: make(http.Header)}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return nil
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, f := range frame.Fields {
				res.Header.Add(f.Name, f.Value)
			}
			if frame.StreamEnded() {
				return res
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return nil
		}
	}
}
