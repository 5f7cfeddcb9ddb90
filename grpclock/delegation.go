package grpclock

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/latchkit/latchkit/locker/delegate"
)

// WithDelegated lets calls to targets run under the leases of their contexts. So a handler that
// holds a lock can call a service that wants the same lock. A target is the text with which the
// connection was made, as in grpc.NewClient(target). Calls to all other targets carry no
// delegation: a delegation in their metadata is removed. Default: no target gets a delegation.
func WithDelegated(s *delegate.Sender, targets ...string) ClientOption {
	return func(c *client) { c.delegates, c.sender, c.targets = true, s, targets }
}

// StreamClientInterceptor returns a client's interceptor that delegates leases to streams: see
// [WithDelegated]. The interceptor does not repeat streams: a service config does that, see
// [RetryServiceConfig].
func StreamClientInterceptor(opts ...ClientOption) (grpc.StreamClientInterceptor, error) {
	c, err := newClient("StreamClientInterceptor", opts)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, err := c.delegate(ctx, cc)
		if err != nil {
			return nil, err
		}
		return streamer(ctx, desc, cc, method, opts...)
	}, nil
}

func (c *client) validateDelegation() error {
	switch {
	case !c.delegates:
		return nil
	case c.sender == nil:
		return errors.New("WithDelegated: the Sender is nil; make one with delegate.NewSender, and check its error")
	case len(c.targets) == 0 || slices.Contains(c.targets, ""):
		return errors.New("WithDelegated: name the targets that get delegations, each as its connection was made; there is no wildcard")
	}
	return nil
}

// delegate adds a delegation of ctx's leases to the metadata of a call to one of the targets. It
// removes delegations from the metadata of all other calls.
func (c *client) delegate(ctx context.Context, cc *grpc.ClientConn) (context.Context, error) {
	var token []byte
	if c.delegates && cc != nil && (slices.Contains(c.targets, cc.Target()) || slices.Contains(c.targets, cc.CanonicalTarget())) {
		var err error
		if token, err = c.sender.Token(ctx); err != nil {
			return nil, problem(ctx, nil, err, codes.Aborted)
		}
	}
	md, there := metadata.FromOutgoingContext(ctx)
	if there = there && len(md[delegate.MetadataKey]) > 0; !there && token == nil {
		return ctx, nil
	}
	if !there {
		return metadata.AppendToOutgoingContext(ctx, delegate.MetadataKey, string(token)), nil
	}
	delete(md, delegate.MetadataKey) // a copy
	if token != nil {
		md.Set(delegate.MetadataKey, string(token))
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// receive removes the delegation from a call's metadata, so that no handler sends it on. If this
// server accepts delegations, receive keeps the delegation for the Locker.
func (g *guard) receive(ctx context.Context) (context.Context, error) {
	came := metadata.ValueFromIncomingContext(ctx, delegate.MetadataKey)
	if came == nil {
		return ctx, nil
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		delete(md, delegate.MetadataKey) // a copy
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	if g.receiver == nil {
		return ctx, nil
	}
	tokens := make([][]byte, len(came))
	for i, token := range came {
		tokens[i] = []byte(token)
	}
	return g.receiver.With(ctx, tokens...)
}

// stripped is a stream that runs without a lock, and whose metadata had a delegation.
type stripped struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the stream's context, with its metadata except for the delegation.
func (s *stripped) Context() context.Context { return s.ctx }
