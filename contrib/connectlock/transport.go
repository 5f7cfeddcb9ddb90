package connectlock

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/latchkit/latchkit/grpclock"
)

// transport takes the place of the transport of a gRPC server. It collects the metadata that
// grpclock and handlers set for the response.
type transport struct {
	procedure string

	mu              sync.Mutex
	header, trailer metadata.MD
}

var _ grpc.ServerTransportStream = (*transport)(nil)

func newTransport(procedure string) *transport { return &transport{procedure: procedure} }

// Method returns the name of the procedure.
func (t *transport) Method() string { return t.procedure }

// SetHeader adds md to the response's header.
func (t *transport) SetHeader(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.header = metadata.Join(t.header, md)
	return nil
}

// SendHeader adds md to the response's header, which connect sends with the first message.
func (t *transport) SendHeader(md metadata.MD) error { return t.SetHeader(md) }

// SetTrailer adds md to the response's trailer.
func (t *transport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

// writeTo moves the collected metadata to a response. The failure of a stream must not repeat what
// the response of the stream has already.
func (t *transport) writeTo(head, trail http.Header) {
	t.writeHeader(head)
	t.mu.Lock()
	defer t.mu.Unlock()
	header(trail, t.trailer)
	t.trailer = nil
}

// writeHeader moves the collected header to a response.
func (t *transport) writeHeader(head http.Header) {
	t.mu.Lock()
	defer t.mu.Unlock()
	header(head, t.header)
	t.header = nil
}

// pushback is the trailer that grpclock sets for a refusal.
const pushback = "grpc-retry-pushback-ms"

// refuse removes the collected metadata of an answer that is not sent. What is left is the trailer
// of the refusal, which grpclock sets after the handler, or while it runs.
func (t *transport) refuse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	values := t.trailer[pushback]
	t.header, t.trailer = nil, nil
	if len(values) > 0 {
		t.trailer = metadata.MD{pushback: values[len(values)-1:]}
	}
}

// keep returns a function that undoes what was set since the call of keep.
func (t *transport) keep() (undo func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	head, trail := t.header, t.trailer
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.header, t.trailer = head, trail
	}
}

func (t *transport) streamInfo(spec connect.Spec) *grpc.StreamServerInfo {
	return &grpc.StreamServerInfo{
		FullMethod:     t.procedure,
		IsClientStream: spec.StreamType&connect.StreamTypeClient != 0,
		IsServerStream: spec.StreamType&connect.StreamTypeServer != 0,
	}
}

// incoming returns the context that a gRPC server would make for a call.
func incoming(ctx context.Context, h http.Header, p connect.Peer, t *transport) context.Context {
	ctx = metadata.NewIncomingContext(ctx, received(h))
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: address(p.Addr)})
	return grpc.NewContextWithServerTransportStream(ctx, t)
}

// metadataOf returns a header as metadata of gRPC. A value that is not valid metadata is left out.
func metadataOf(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		for _, v := range values {
			if value, ok := decoded(name, v); ok {
				md.Append(name, value)
			}
		}
	}
	return md
}

// received returns the header of a request as metadata of gRPC. An invalid value counts as empty,
// because the handler also sees it: in a key, the next value must not take its place.
func received(h http.Header) metadata.MD {
	md := make(metadata.MD, len(h))
	for name, values := range h {
		for _, v := range values {
			value, _ := decoded(name, v)
			md.Append(name, value)
		}
	}
	return md
}

func decoded(name, value string) (text string, ok bool) {
	if !binary(name) {
		return value, true
	}
	raw, err := connect.DecodeBinaryHeader(value)
	if err != nil {
		return "", false
	}
	return string(raw), true
}

func binary(name string) bool { return strings.HasSuffix(strings.ToLower(name), "-bin") }

// address is a text that implements net.Addr.
type address string

var _ net.Addr = address("")

// Network returns "tcp", because connect does not report the network.
func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// encoded returns the form that a value has in an HTTP header.
func encoded(name, value string) string {
	if binary(name) {
		return connect.EncodeBinaryHeader([]byte(value))
	}
	return value
}

// serverStream makes a connection of connect look like a stream of gRPC, for grpclock's
// interceptors.
//
// If the lock is lost or the client stalls, a guarded handler may return although its last Send
// still waits for the client. grpc-go allows this. But connect-go would then write the end of the
// stream into the middle of the message. So the method end waits for the Send, and refuses every
// later Send. The lock is released before this wait.
type serverStream struct {
	ctx  context.Context
	conn connect.StreamingHandlerConn
	call *transport

	mu   sync.Mutex // held while a message is sent
	over bool
}

var _ grpc.ServerStream = (*serverStream)(nil)

// Context returns the context of the call.
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message.
func (s *serverStream) RecvMsg(m any) error { return s.conn.Receive(m) }

// SendMsg sends a message.
func (s *serverStream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errOver
	}
	s.call.writeHeader(s.conn.ResponseHeader()) // the header leaves with the first message
	return s.conn.Send(m)
}

var errOver = errors.New("connectlock: the handler of the stream has returned")

// end waits for a Send that is under way. When end has returned, every Send is refused.
func (s *serverStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// SetHeader adds md to the response's header.
func (s *serverStream) SetHeader(md metadata.MD) error {
	header(s.conn.ResponseHeader(), md)
	return nil
}

// SendHeader adds md to the response's header, which connect sends with the first message.
func (s *serverStream) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

// SetTrailer adds md to the response's trailer.
func (s *serverStream) SetTrailer(md metadata.MD) { header(s.conn.ResponseTrailer(), md) }

// guardedConn is a connection whose messages go through grpclock.
type guardedConn struct {
	connect.StreamingHandlerConn
	stream grpc.ServerStream
}

// Receive receives a message; the first Receive may acquire the lock.
func (c *guardedConn) Receive(m any) error { return coded(c.stream.RecvMsg(m)) }

// Send sends a message, unless the lock is lost.
func (c *guardedConn) Send(m any) error { return coded(c.stream.SendMsg(m)) }

// coded converts the status by which grpclock reports the end of a call to the error that handlers
// of connect know. It leaves a Problem as it is, because failure looks for it.
func coded(err error) error {
	var p *grpclock.Problem
	if st, ok := status.FromError(err); ok && err != nil && !errors.As(err, &p) {
		return failureOf(st)
	}
	return err
}

func errorInfo(d *connect.ErrorDetail) (*errdetails.ErrorInfo, bool) {
	m, err := d.Value()
	if err != nil {
		return nil, false
	}
	info, ok := m.(*errdetails.ErrorInfo)
	return info, ok
}

func retryInfo(d *connect.ErrorDetail) (*errdetails.RetryInfo, bool) {
	m, err := d.Value()
	if err != nil {
		return nil, false
	}
	info, ok := m.(*errdetails.RetryInfo)
	return info, ok
}
