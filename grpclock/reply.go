package grpclock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/latchkit/latchkit/internal/fenced"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
)

// domain is the domain of the ErrorInfo in the statuses of this package.
const domain = "github.com/latchkit/latchkit"

// The reasons in an ErrorInfo, and the values of [Problem.Reason].
const (
	ReasonBusy           = "LOCK_BUSY"
	ReasonTooManyWaiters = "TOO_MANY_WAITERS"
	ReasonDone           = "ALREADY_DONE"
	ReasonInvalidKey     = "INVALID_KEY"
	ReasonUnavailable    = "LOCK_UNAVAILABLE"
	ReasonClosed         = "LOCK_CLOSED"
	ReasonLost           = "LOCK_LOST"
	ReasonMisconfigured  = "LOCK_MISCONFIGURED"
	ReasonCallerGone     = "CALLER_GONE"
)

// pushback is the trailer that sets the time of retries in gRPC's own clients. A negative value
// forbids retries.
const pushback = "grpc-retry-pushback-ms"

// soon is the time after which a client should try again if no better time is known.
const soon = time.Second

// A Problem is the reason why a call did not get its lock, or lost it. It is the error that the
// interceptors return; gRPC sends its status. The error's text is for logs and does not contain the
// key. errors.Is and errors.As find in it the Locker's error, and the handler's error if the
// handler ran.
type Problem struct {
	Code       codes.Code
	Reason     string        // the reason in the ErrorInfo
	Message    string        // the message for the client
	Rule       string        // the lock's name; "" where there is no rule
	Method     string        // the full method; "" where it is not known
	Field      string        // with ReasonInvalidKey: the part that the request lacks
	RetryAfter time.Duration // the time after which the client may try again; 0: it must not try again

	err error
}

// Error returns, for example, "grpclock: LOCK_UNAVAILABLE: acquire: the lock server is unavailable:
// EOF".
func (p *Problem) Error() string {
	if e, ok := errors.AsType[*locker.Error](p.err); ok { // the text of *locker.Error has the key
		return fmt.Sprintf("grpclock: %s: %v: %v", p.Reason, e.Op, e.Err)
	}
	if e, ok := errors.AsType[fenced.Keyed](p.err); ok {
		return fmt.Sprintf("grpclock: %s: %v", p.Reason, e.Unwrap())
	}
	return fmt.Sprintf("grpclock: %s: %v", p.Reason, p.err)
}

// Unwrap returns the Locker's error.
func (p *Problem) Unwrap() error { return p.err }

// ErrorType returns the reason of the Problem for OpenTelemetry's error.type, which must have few
// values.
func (p *Problem) ErrorType() string { return p.Reason }

// GRPCStatus returns the status for the client.
func (p *Problem) GRPCStatus() *status.Status {
	st := status.New(p.Code, p.Message)
	info := &errdetails.ErrorInfo{Reason: p.Reason, Domain: domain, Metadata: map[string]string{}}
	if p.Rule != "" {
		info.Metadata["rule"] = p.Rule
	}
	details := []protoadapt.MessageV1{info}
	if p.RetryAfter > 0 {
		info.Metadata["retry_after_ms"] = strconv.FormatInt(p.retryAfterMS(), 10)
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(p.retryAfterMS()) * time.Millisecond)})
	}
	if p.Field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
			Field: p.Field, Description: p.Message,
		}}})
	}
	if whole, err := st.WithDetails(details...); err == nil { // never fails, because the details are of known types
		return whole
	}
	return st
}

// retryAfterMS returns RetryAfter in milliseconds. It rounds up, because a client that returns a
// moment too early would be refused again.
func (p *Problem) retryAfterMS() int64 {
	return int64((p.RetryAfter + time.Millisecond - 1) / time.Millisecond)
}

// trailer returns the trailer by which gRPC's own clients decide whether and when to retry. These
// clients repeat a status without the trailer if its code is in their retry policy. So each Problem
// without a time forbids the retry, because the call may have had an effect.
func (p *Problem) trailer() metadata.MD {
	if p.RetryAfter > 0 {
		return metadata.Pairs(pushback, strconv.FormatInt(p.retryAfterMS(), 10))
	}
	return metadata.Pairs(pushback, "-1")
}

// reply is the reply to one kind of error.
type reply struct {
	is      error
	code    codes.Code
	reason  string
	message string
	retry   bool // the reply has a time for the retry
}

// replies has the reply for each error of a refused call. The first entry that matches the error
// counts.
var replies = []reply{
	{is: locker.ErrDone, code: codes.AlreadyExists, reason: ReasonDone,
		message: "an earlier call has done the work, so it was not done again"},
	{is: locker.ErrTooManyWaiters, code: codes.ResourceExhausted, reason: ReasonTooManyWaiters, retry: true,
		message: "too many calls wait for the lock; nothing was done"},
	{is: locker.ErrClosed, code: codes.Unavailable, reason: ReasonClosed, retry: true,
		message: "the service is stopping; nothing was done"},
	{is: locker.ErrInvalidKey, code: codes.InvalidArgument, reason: ReasonInvalidKey,
		message: "the request cannot be locked: it makes a key that is not allowed"},
	{is: locker.ErrInvalidRule, code: codes.Internal, reason: ReasonMisconfigured,
		message: "the lock is set up wrongly; nothing was done"},
	{is: locker.ErrUnsupported, code: codes.Internal, reason: ReasonMisconfigured,
		message: "the lock is set up wrongly; nothing was done"},
	{is: locker.ErrLost, code: codes.Aborted, reason: ReasonLost,
		message: "the lock was lost before the call began; nothing was done"},
	unavailable,
	{is: locker.ErrBusy, code: codes.Aborted, reason: ReasonBusy, retry: true,
		message: "the lock is held by another call; nothing was done"},
}

// unavailable is also the reply to every error that is not in replies, because no handler may run
// without the lock.
var unavailable = reply{is: locker.ErrUnavailable, code: codes.Unavailable, reason: ReasonUnavailable, retry: true,
	message: "the lock server is unavailable; nothing was done"}

// overtaken is the reply to a call whose lock ended before its handler did.
var overtaken = reply{code: codes.Aborted, reason: ReasonLost,
	message: "the lock was lost while the call was handled; it may or may not have been completed"}

// closing is the reply to a stream whose Locker is closed.
var closing = reply{code: codes.Unavailable, reason: ReasonClosed,
	message: "the service is stopping; the call may or may not have been completed"}

// refuse returns the reply to a call whose handler did not run.
func (g *guard) refuse(ctx context.Context, c *call, err error) error {
	return g.answer(ctx, problem(ctx, c, err))
}

// answer reports p, and returns it as the reply of its call.
func (g *guard) answer(ctx context.Context, p *Problem) *Problem {
	p = p.send(ctx)
	g.report(ctx, p)
	return p
}

// send sets the trailer of p, and returns p.
func (p *Problem) send(ctx context.Context) *Problem {
	_ = grpc.SetTrailer(ctx, p.trailer()) // the error is ignored, because it occurs only in tests of the interceptor without a server
	return p
}

// report counts the call by the reason of p, and calls the functions of WithObserve with p.
func (g *guard) report(ctx context.Context, p *Problem) {
	g.refused(ctx, p)
	g.show(ctx, p)
}

// show gives p to the functions of WithObserve.
func (g *guard) show(ctx context.Context, p *Problem) {
	for _, see := range g.observe {
		see(ctx, p)
	}
}

// problem returns the Problem for the error of a call whose handler did not run.
func problem(ctx context.Context, c *call, err error) *Problem {
	// A Locker may fail with a context error of its own. Only the end of the call's context means
	// that the client has left.
	if over := ctx.Err(); over != nil && errors.Is(err, over) {
		st := status.FromContextError(over)
		return reply{code: st.Code(), reason: ReasonCallerGone, message: "the call ended while it waited for the lock; nothing was done"}.problem(c, err)
	}
	if lacks, ok := errors.AsType[*template.Error](err); ok && !errors.Is(err, locker.ErrInvalidRule) {
		p := reply{code: codes.InvalidArgument, reason: ReasonInvalidKey, message: lacks.Error()}.problem(c, err)
		if p.Field = lacks.Part.Name; lacks.Part.Source != "req" {
			p.Field = lacks.Noun
			if lacks.Part.Name != "" {
				p.Field += "." + lacks.Part.Name
			}
		}
		return p
	}
	for _, r := range replies {
		if errors.Is(err, r.is) {
			return r.problem(c, err)
		}
	}
	return unavailable.problem(c, err)
}

// spoiled handles an error of the lock after the handler has run. If spoiled returns nil, the
// client gets the handler's reply. A reply of [Status] knows of the loss, and more about the work.
func (g *guard) spoiled(ctx context.Context, c *call, err, failure error) error {
	if !endedEarly(err) {
		// The work succeeded, but with Rule.OnceFor it is unknown whether the mark "done" was
		// written.
		g.report(ctx, problem(ctx, c, err))
		return nil
	}
	p := overtaken.problem(c, err)
	if said, ok := errors.AsType[*Problem](failure); ok { // by Status
		g.report(ctx, p)
		return said
	}
	if failure != nil {
		p.err = errors.Join(err, failure)
	}
	return g.answer(ctx, p)
}

func endedEarly(err error) bool {
	return errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrExpired)
}

// problem makes a Problem from r for the call c, with the cause err.
func (r reply) problem(c *call, err error) *Problem {
	p := &Problem{Code: r.code, Reason: r.reason, Message: r.message, err: err}
	if c != nil {
		if p.Method = c.name; c.method != nil {
			p.Rule = c.method.rule.Name
		}
	}
	if r.retry {
		p.RetryAfter = soon
		if e, ok := errors.AsType[*locker.Error](err); ok && e.RetryAfter > 0 {
			p.RetryAfter = e.RetryAfter
		}
	}
	return p
}
