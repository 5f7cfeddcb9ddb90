package grpclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
)

// Idempotency configures stored answers, for rules with [Rule].Idempotency. Only the field Store is
// required.
//
// The answer of a call is its status, its response, and the metadata that the handler has set. The
// answer is looked up before any lock is taken. A repeated call waits while the first call is under
// way. Then it gets the first call's answer, with "true" in the header [ReplayedKey]. The handler's
// context does not end when the client leaves: the handler finishes, and a repeated call finds the
// answer. After the look-up, the locks of the rule's Key or Keys are taken, so locker.FromContext
// finds the lease of one of these locks.
//
// If such a lock is lost, the call ends with LOCK_LOST. If the handler has succeeded all the same,
// the work is done, and a repeated call gets the handler's answer. An idempotency.Transactor rolls
// the work back instead, and a repeated call runs again.
//
// In a handler whose answer is stored, grpc.SetSendCompressor returns an error and sets nothing.
type Idempotency struct {
	_ struct{} // keyed literals only

	// Store keeps the answers: idempotency.NewRedis, with a Redis that does not keep the locks, or
	// idempotency.NewMemory.
	Store idempotency.Store
	// Lifetime is how long an answer is stored. Default: 24 h.
	Lifetime time.Duration
	// FinishWithin is how long a handler may continue after its client has left. Default: 1 min.
	FinishWithin time.Duration
	// MaxResponse is the largest size of an encoded answer, in bytes. If the answer is larger, the
	// Store keeps only the fact that the work is done, and a repeated call is answered with
	// ALREADY_EXISTS. Default: 64 KiB.
	MaxResponse int
	// Storable reports whether an answer with this status is stored. If the answer is not stored, a
	// repeated call runs again. Default: OK, and the failures that a repeated call would meet
	// again: INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION
	// and OUT_OF_RANGE.
	Storable func(code codes.Code) bool
	// Fingerprint returns the data that must be the same in a repeated call as in the first call.
	// Default: the whole request. If two calls get the same name by [Rule].Idempotency, but have
	// different fingerprints, the second call is refused with INVALID_ARGUMENT.
	//
	// The default depends on the fields that the server's version of the message knows. During a
	// rollout, a server of another version may refuse a client's repeated call with
	// IDEMPOTENCY_KEY_REUSED. If clients send a new field before all servers know it, return only
	// fields that all servers know.
	Fingerprint func(ctx context.Context, fullMethod string, req any) ([]byte, error)
}

// WithIdempotency stores the answers of methods whose rule has [Rule].Idempotency. Without this
// option, [Rules.Bind] refuses such rules.
func WithIdempotency(i Idempotency) Option {
	return func(c *config) { c.Idempotency, c.idempotent = i, true }
}

// ReplayedKey is the header that marks a repeated answer.
const ReplayedKey = "idempotency-replayed"

func (i *Idempotency) setDefaults() {
	if i.MaxResponse == 0 {
		i.MaxResponse = 64 << 10
	}
	if i.Storable == nil {
		i.Storable = storable
	}
	if i.Fingerprint == nil {
		i.Fingerprint = wholeRequest
	}
}

func (i *Idempotency) validate() error {
	switch {
	case i.Store == nil:
		return errors.New("WithIdempotency: the Store is nil; make one with idempotency.NewRedis or idempotency.NewMemory")
	case i.Lifetime < 0 || i.FinishWithin < 0 || i.MaxResponse < 0:
		return fmt.Errorf("WithIdempotency: Lifetime %v, FinishWithin %v, MaxResponse %d: none may be negative", i.Lifetime, i.FinishWithin, i.MaxResponse)
	}
	return nil
}

func storable(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange:
		return true
	default:
		return false
	}
}

func wholeRequest(_ context.Context, _ string, req any) ([]byte, error) {
	m, ok := req.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("the request is a %T and not a protobuf message", req)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// idempotencyName is the beginning of the keys of answers, and the name of their locks.
const idempotencyName = "idempotency"

// once answers a call from the store, or runs its handler and stores the answer.
func (g *guard) once(ctx context.Context, c *call, handler grpc.UnaryHandler) (any, error) {
	if g.open(ctx, c) {
		return handler(ctx, c.req)
	}
	req, err := g.request(ctx, c)
	if err != nil {
		return nil, g.refuse(ctx, c, err)
	}
	w := work{guard: g, call: c, handler: handler, outer: ctx, began: time.Now()}
	keeper := idempotency.Keeper{Locker: g.locker, Store: g.Store, Lifetime: g.Lifetime, FinishWithin: g.FinishWithin}
	var answer idempotency.Answer
	err = g.breaker.Try(ctx, req.Rule.Key, func(ctx context.Context, granted func()) (err error) {
		w.granted = granted
		answer, err = keeper.Do(ctx, req, w.run)
		return err
	})
	switch {
	case w.ran && err == nil:
		return w.resp, w.failure
	case w.ran && errors.Is(err, idempotency.ErrNotStored): // the call still succeeds: after an error the client would repeat work that is done
		g.report(ctx, unavailable.problem(c, err))
		return w.resp, w.failure
	case w.ran && endedEarly(err):
		return nil, g.spoiled(ctx, c, err, w.failure)
	case w.ran:
		return nil, g.answer(ctx, uncommitted.problem(c, err))
	case err == nil:
		g.event(ctx, idempotencyName, eventReplayed, 0)
		return g.replay(ctx, c, answer.Response)
	case g.opens(ctx, c, err):
		return handler(ctx, c.req)
	}
	return nil, g.refuse(ctx, c, err)
}

// request makes the Keeper's request for a call.
func (g *guard) request(ctx context.Context, c *call) (req idempotency.Request, err error) {
	req.Rule = locker.Rule{Name: idempotencyName, Wait: c.method.rule.Wait, TTL: c.method.rule.TTL}
	if req.Rule.Wait == 0 {
		req.Rule.Wait = g.wait
	}
	if req.Rule.TTL == 0 {
		req.Rule.TTL = g.ttl
	}
	if req.Rule.Key, err = c.method.idempotency.Key(ctx, c); err != nil {
		return req, err
	}
	content, err := g.Fingerprint(ctx, c.name, c.req)
	if err != nil {
		return req, fmt.Errorf("%w: the fingerprint of the request: %w", locker.ErrInvalidRule, err)
	}
	req.Content = [][]byte{[]byte(c.name), content}
	return req, nil
}

// work is the run of a handler whose answer is stored.
type work struct {
	guard   *guard
	call    *call
	handler grpc.UnaryHandler
	outer   context.Context // the context of the call
	began   time.Time
	granted func() // called when the call has its lock

	ran     bool
	resp    any
	failure error
}

func (w *work) run(ctx context.Context) (out idempotency.Outcome) {
	w.ran = true
	w.granted()
	w.guard.event(w.outer, idempotencyName, eventAcquired, time.Since(w.began))
	r := &recorder{outer: grpc.ServerTransportStreamFromContext(ctx), method: w.call.name, call: w.outer}
	var resp any
	var answer idempotency.Response // without what the reply to a lost lock adds
	succeeded := false
	w.resp, w.failure = w.guard.locked(grpc.NewContextWithServerTransportStream(ctx, r), w.call, func(ctx context.Context, req any) (_ any, err error) {
		resp, err = w.handler(ctx, req)
		answer, succeeded = r.response(int(status.Code(err))), err == nil
		return resp, err
	})
	failure := w.failure
	if _, undoes := w.guard.Store.(idempotency.Transactor); succeeded && !undoes {
		failure = nil // even if a lock was lost, the work is done, and a repeated call must not do it again
	}
	out.Failed = failure != nil
	if _, refused := failure.(*Problem); refused || out.Failed && ctx.Err() != nil { //nolint:errorlint // this package's own Problem, and not the Problem of a call that the handler made
		return out
	}
	if out.Keep = w.guard.Storable(status.Code(failure)); !out.Keep {
		return out
	}
	body, err := encode(resp, failure)
	size := len(body)
	out.Response = answer
	out.Response.Body = body
	for _, md := range []map[string][]string{out.Response.Header, out.Response.Trailer} {
		for name, values := range md {
			for _, v := range values {
				size += len(name) + len(v)
			}
		}
	}
	out.DoneOnly = err != nil || size > w.guard.MaxResponse
	return out
}

// encode returns the bytes that are stored: of the response, or of the status of a failure.
func encode(resp any, failure error) ([]byte, error) {
	if failure != nil {
		return proto.Marshal(status.Convert(failure).Proto())
	}
	m, ok := resp.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("the response is a %T and not a protobuf message", resp)
	}
	return proto.Marshal(m)
}

// replay returns the stored answer of an earlier call.
func (g *guard) replay(ctx context.Context, c *call, r idempotency.Response) (any, error) {
	header := metadata.MD(r.Header).Copy()
	header.Set(ReplayedKey, "true")
	_ = grpc.SetHeader(ctx, header) // the error is ignored, because it occurs only in tests of the interceptor without a server
	_ = grpc.SetTrailer(ctx, r.Trailer)
	if r.Status != int(codes.OK) {
		st := &spb.Status{}
		if err := proto.Unmarshal(r.Body, st); err != nil {
			return nil, g.answer(ctx, unreadable.problem(c, err))
		}
		return nil, status.FromProto(st).Err()
	}
	output, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(c.method.output))
	if err != nil {
		return nil, g.answer(ctx, unreadable.problem(c, err))
	}
	resp := output.New().Interface()
	if err := proto.Unmarshal(r.Body, resp); err != nil {
		return nil, g.answer(ctx, unreadable.problem(c, err))
	}
	return resp, nil
}

// recorder records the metadata that a handler sets, and passes it on.
type recorder struct {
	outer  grpc.ServerTransportStream // nil if no server has made the call
	method string
	call   context.Context // ends when the client leaves

	mu              sync.Mutex
	header, trailer metadata.MD
}

var _ grpc.ServerTransportStream = (*recorder)(nil)

// Method returns the full method.
func (r *recorder) Method() string { return r.method }

// SetHeader records md.
func (r *recorder) SetHeader(md metadata.MD) error {
	r.noteHeader(md)
	if r.outer == nil {
		return nil
	}
	return r.passed(r.outer.SetHeader(md))
}

// SendHeader records md.
func (r *recorder) SendHeader(md metadata.MD) error {
	r.noteHeader(md)
	if r.outer == nil {
		return nil
	}
	return r.passed(r.outer.SendHeader(md))
}

func (r *recorder) noteHeader(md metadata.MD) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = metadata.Join(r.header, md)
}

// SetTrailer records md.
func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	r.trailer = metadata.Join(r.trailer, md)
	r.mu.Unlock()
	if r.outer == nil {
		return nil
	}
	return r.passed(r.outer.SetTrailer(md))
}

// passed returns the error of the transport. When the client has left, nothing can be sent, and
// this is no error: the handler must finish, so that a repeated call finds the answer.
func (r *recorder) passed(err error) error {
	select {
	case <-r.call.Done():
		return nil
	default:
		return err
	}
}

func (r *recorder) response(code int) idempotency.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	return idempotency.Response{Status: code, Header: r.header, Trailer: r.trailer}
}

// idempotencyKey puts a name before the template of a rule, so that the keys of answers differ from
// the keys of locks.
func idempotencyKey(k key.Key) key.Key { return key.Join(idempotencyName, k) }
