package connectlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/locker"
)

// NewInterceptor returns an interceptor that runs handlers under the locks that rules name:
//
//	locks, err := connectlock.NewInterceptor(l, rules)
//	…
//	path, handler := inventoryv1connect.NewInventoryHandler(inventory, connect.WithInterceptors(locks))
//	err = rules.Bind(connectlock.Services("inventory.v1.Inventory"))
//
// A call waits for at most 5 s, or for the wait of its rule. Then it is refused: CodeAborted with
// RetryInfo, and CodeUnavailable while Redis does not answer.
//
// Put the interceptor behind those for tracing, recovery and authentication. As an interceptor of a
// client, it has no effect.
//
// Call rules.Bind with [Services] before the server starts. Until Bind has succeeded, every call is
// refused with CodeInternal. If an argument is invalid, NewInterceptor returns an error that names
// the argument.
func NewInterceptor(l locker.Locker, rules *grpclock.Rules, opts ...grpclock.Option) (connect.Interceptor, error) {
	opts = append(slices.Clip(opts), grpclock.WithBoundRules())
	unary, err := grpclock.UnaryServerInterceptor(l, rules, opts...)
	if err != nil {
		return nil, fmt.Errorf("connectlock: %w", err)
	}
	stream, err := grpclock.StreamServerInterceptor(l, rules, opts...)
	if err != nil {
		return nil, fmt.Errorf("connectlock: %w", err)
	}
	return &interceptor{unary: unary, stream: stream}, nil
}

// Services tells Rules.Bind the services of a connect-go server by their full names, such as
// "inventory.v1.Inventory", or inventoryv1connect.InventoryName in generated code. Bind refuses a
// service that this program does not contain.
func Services(names ...string) ServiceInfo { return names }

// ServiceInfo describes services to Rules.Bind; see [Services].
type ServiceInfo []string

// GetServiceInfo returns the services; Rules.Bind calls it.
func (s ServiceInfo) GetServiceInfo() map[string]grpc.ServiceInfo {
	all := make(map[string]grpc.ServiceInfo, len(s))
	for _, name := range s {
		all[name] = grpc.ServiceInfo{}
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			continue // Bind will report that none of the service's methods has a rule
		}
		service, ok := found.(protoreflect.ServiceDescriptor)
		if !ok {
			continue
		}
		var info grpc.ServiceInfo
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			info.Methods = append(info.Methods, grpc.MethodInfo{
				Name: string(m.Name()), IsClientStream: m.IsStreamingClient(), IsServerStream: m.IsStreamingServer(),
			})
		}
		all[name] = info
	}
	return all
}

// interceptor runs connect's handlers inside of grpclock's interceptors.
type interceptor struct {
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

var _ connect.Interceptor = (*interceptor)(nil)

// WrapUnary guards a unary handler.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if req.Spec().IsClient {
			return next(ctx, req)
		}
		t := newTransport(req.Spec().Procedure)
		side := besideOf(ctx)
		var resp connect.AnyResponse
		ran := false
		message, err := i.unary(incoming(ctx, req.Header(), req.Peer(), t), req.Any(), &grpc.UnaryServerInfo{FullMethod: t.procedure}, func(ctx context.Context, _ any) (any, error) {
			ran = true
			var err error
			if resp, err = next(ctx, req); err != nil {
				t.storeFailure(ctx, side, err)
				return nil, &handled{err}
			}
			t.store(ctx, side, resp.Header(), resp.Trailer())
			return resp.Any(), nil
		})
		if err != nil {
			switch p := (*grpclock.Problem)(nil); {
			case ran && errors.As(err, &p): // the handler's answer is not sent, so its metadata is not sent either
				t.refuse()
				side.forget()
			case ran: // the metadata is not written into the handler's error, which calls may share
				t.writeTo(side.header.now, side.trailer.now)
			}
			return nil, t.failure(err)
		}
		if stored, ok := message.(proto.Message); ok && resp == nil {
			resp = connect.NewResponse(&repeated{stored})
		}
		t.writeTo(resp.Header(), resp.Trailer())
		return resp, nil
	}
}

// WrapStreamingClient returns next unchanged.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler guards a streaming handler.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		t := newTransport(conn.Spec().Procedure)
		side := beside{partOf(conn.ResponseHeader()), partOf(conn.ResponseTrailer())}
		ss := &serverStream{ctx: incoming(ctx, conn.RequestHeader(), conn.Peer(), t), conn: conn, call: t}
		err := i.stream(nil, ss, t.streamInfo(conn.Spec()), func(_ any, guarded grpc.ServerStream) error {
			return next(guarded.Context(), &guardedConn{conn, guarded})
		})
		ss.end()
		if p := (*grpclock.Problem)(nil); errors.As(err, &p) { // what has not left belongs to the answer of the handler
			t.refuse()
			side.forget()
		}
		t.writeTo(conn.ResponseHeader(), conn.ResponseTrailer())
		if err != nil {
			return t.failure(err)
		}
		return nil
	}
}

// repeated is a stored answer, whose type connect does not know.
type repeated struct{ proto.Message }

// store gives the metadata of a handler's answer to grpclock if grpclock stores the answer. connect
// sends this metadata by itself, so t does not keep it.
func (t *transport) store(ctx context.Context, b beside, header, trailer http.Header) {
	s := grpc.ServerTransportStreamFromContext(ctx)
	if s == t {
		return
	}
	defer t.keep()()
	_ = s.SetHeader(metadata.Join(storable(b.header.added()), storable(header))) // t accepts everything
	_ = s.SetTrailer(metadata.Join(storable(b.trailer.added()), storable(trailer)))
}

// storeFailure is store for the error of a handler.
func (t *transport) storeFailure(ctx context.Context, b beside, err error) {
	var meta http.Header
	if failure, ok := errors.AsType[*connect.Error](err); ok {
		meta = failure.Meta()
	}
	t.store(ctx, b, nil, meta)
}

// storable returns the headers that a stored answer may contain, as metadata. A cookie belongs to
// one client, and a header that is not valid metadata is not stored.
func storable(h http.Header) metadata.MD {
	md := metadataOf(h)
	for name, values := range h {
		if key := strings.ToLower(name); key == "set-cookie" || len(md[key]) != len(values) {
			delete(md, key)
		}
	}
	return md
}

// beside is the metadata that connect sends beside the response or the error of a unary handler, or
// with a stream. Handlers and interceptors set it through connect.CallInfo, or in the stream.
type beside struct{ header, trailer part }

// forget removes what the handler has set.
func (b beside) forget() {
	b.header.forget()
	b.trailer.forget()
}

func besideOf(ctx context.Context) beside {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok { // connect has not made the call
		return beside{partOf(make(http.Header)), partOf(make(http.Header))}
	}
	return beside{partOf(info.ResponseHeader()), partOf(info.ResponseTrailer())}
}

// part is the header or the trailer of beside. before is what other interceptors had set when the
// call came to this interceptor. It belongs to this call, and is not stored with the answer.
type part struct{ now, before http.Header }

func partOf(h http.Header) part { return part{h, h.Clone()} }

// added returns what the handler has set. It may have added values to those of an interceptor.
func (p part) added() http.Header {
	h := make(http.Header)
	for name, values := range p.now {
		if before := p.before[name]; len(values) >= len(before) && slices.Equal(values[:len(before)], before) {
			values = values[len(before):]
		}
		if len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

// forget removes what the handler has set.
func (p part) forget() {
	clear(p.now)
	maps.Copy(p.now, p.before)
}

// handled is the error of a handler, with the status that grpclock reads.
type handled struct{ error }

// Unwrap returns the error that the handler returned.
func (h *handled) Unwrap() error { return h.error }

// GRPCStatus returns the handler's error as a status of gRPC.
func (h *handled) GRPCStatus() *status.Status {
	var failure *connect.Error
	if !errors.As(h.error, &failure) {
		return status.New(codes.Unknown, h.Error())
	}
	st := &spb.Status{Code: int32(failure.Code()), Message: failure.Message()}
	for _, d := range failure.Details() {
		st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
	}
	return status.FromProto(st)
}

// failure converts err to the error that connect sends to the client.
func (t *transport) failure(err error) error {
	var own *handled
	var p *grpclock.Problem
	switch {
	case errors.As(err, &p):
		return t.refusal(p)
	case errors.As(err, &own):
		return own.error
	}
	if st, ok := status.FromError(err); ok { // the error is a failure that grpclock has stored
		failure := failureOf(st)
		t.writeTo(failure.Meta(), failure.Meta())
		return failure
	}
	return err
}

func (t *transport) refusal(p *grpclock.Problem) error {
	failure := failureOf(p.GRPCStatus())
	t.writeTo(failure.Meta(), failure.Meta())
	if p.RetryAfter > 0 {
		failure.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
	return &refusal{failure, p}
}

// failureOf converts a status of gRPC to connect's error.
func failureOf(st *status.Status) *connect.Error {
	failure := connect.NewError(connect.Code(st.Code()), errors.New(st.Message()))
	for _, detail := range st.Proto().GetDetails() {
		// NewErrorDetail cannot fail, because each detail of a status is a message.
		if d, err := connect.NewErrorDetail(detail); err == nil {
			failure.AddDetail(d)
		}
	}
	return failure
}

// refusal is the error that outer interceptors receive. It wraps two errors: the error that connect
// sends, and the Problem, which wraps the Locker's error.
type refusal struct {
	sent *connect.Error
	why  *grpclock.Problem
}

// Error returns a text for logs, without the key.
func (r *refusal) Error() string { return r.why.Error() }

// Unwrap returns both errors. Connect sends the first error to the client.
func (r *refusal) Unwrap() []error { return []error{r.sent, r.why} }

// Reason returns why a call was refused, such as grpclock.ReasonBusy. err is the error that a
// client of connect-go got. ok is false if err does not come from a lock.
func Reason(err error) (reason string, ok bool) {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return "", false
	}
	for _, d := range failure.Details() {
		if info, ok := errorInfo(d); ok && info.GetDomain() == grpclock.Domain {
			return info.GetReason(), true
		}
	}
	return "", false
}

// RetryAfter returns the time after which a refused call may be repeated. It returns false if the
// call must not be repeated, or if the server sent no time.
func RetryAfter(err error) (time.Duration, bool) {
	var failure *connect.Error
	if _, ours := Reason(err); !ours || !errors.As(err, &failure) {
		return 0, false
	}
	for _, d := range failure.Details() {
		if info, ok := retryInfo(d); ok && info.GetRetryDelay().CheckValid() == nil {
			return max(info.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

func header(to http.Header, from map[string][]string) {
	for name, values := range from {
		for _, v := range values {
			to.Add(name, encoded(name, v))
		}
	}
}
