// Package grpclock guards gRPC methods with locks. The .proto file of a method names its lock:
//
//	import "latchkit/lock/v1/lock.proto";
//
//	rpc Reserve(ReserveRequest) returns (ReserveReply) {
//	  option (latchkit.lock.v1.lock) = { key: "sku:{req.sku|text}" wait { seconds: 2 } };
//	}
//
// The interceptors of the server take the lock:
//
//	rules := grpclock.FromDescriptors()
//	options, err := grpclock.ServerOptions(l, rules)
//	…
//	server := grpc.NewServer(options...)
//	pb.RegisterInventoryServer(server, inventory)
//	err = rules.Bind(server) // finds mistakes now, not with the first call
//
// Calls for the same item run one at a time, in all processes that share the Redis. The handler's
// context ends, with a cause, when the lock is lost. locker.FromContext finds the lease in the
// context, and the lease has the fence. The lock is released when the handler returns or panics,
// also if the client has left.
//
// protoc, with the plugins of https://grpc.io/docs/languages/go/quickstart, finds lock.proto in
// grpclock/proto of this module:
//
//	protoc -I "$(go list -m -f '{{.Dir}}' github.com/latchkit/latchkit)/grpclock/proto" -I . \
//	  --go_out=. --go-grpc_out=. inventory.proto
//
// buf needs a copy of that folder in its workspace, and makes no code of the copy, because package
// lockpb is its code:
//
//	mkdir -p third_party/latchkit/latchkit/lock/v1
//	cat "$(go list -m -f '{{.Dir}}' github.com/latchkit/latchkit)/grpclock/proto/latchkit/lock/v1/lock.proto" \
//	  >third_party/latchkit/latchkit/lock/v1/lock.proto
//
//	# buf.yaml
//	version: v2
//	modules: [{path: proto}, {path: third_party/latchkit}]
//	lint: {ignore: [third_party/latchkit]}
//
//	# buf.gen.yaml
//	version: v2
//	inputs: [{directory: proto}]
//	plugins:
//	  - {local: protoc-gen-go, out: gen, opt: paths=source_relative}
//	  - {local: protoc-gen-go-grpc, out: gen, opt: paths=source_relative}
//
// A [RuleMap] has such rules in Go, for methods whose .proto file is not yours. [KeyOf] makes the
// key with a typed function.
//
// # Keys
//
// A key is a template, as package [github.com/latchkit/latchkit/locker/key] describes it. Its parts
// are
//
//	{req.order_id}      a field of the request; {req.item.sku} inside a message
//	{req.items.*.sku}   a field of each element of a list: a key, and a lock, for each
//	{meta.x-tenant}     a value of the metadata; if there are several, the first
//	{claim.sub}         a claim that authentication has found: see Rules.WithClaims
//	{peer}              the address of the other end
//	{req.order_id|int}  a part with a filter
//
// Text, numbers, booleans, enums (by number) and bytes can be parts of a key. An empty part, or a
// field with presence that is not set, is refused with INVALID_ARGUMENT. A call with several keys
// takes all of its locks together, or none; locker.LeasesFromContext finds the leases.
//
// A filter gives each identity one spelling: {req.order_id|int}, |uuid, |lower, |nfc, or |text for
// the text as it is. A rule with once_for needs one in each string field and each {meta.NAME},
// because a client chooses their text, and each spelling of an id would do the work again. The keys
// of a function ([KeyOf], [WithRule]) are not checked: make them of what the handler has parsed.
//
// Only authenticated parts separate tenants, because a client chooses its metadata. Use
// {claim.sub}, and put the interceptor for authentication before grpclock's.
//
// # The number of the annotation
//
// The option has the number 57305, from the range for in-house use. If your organisation uses that
// number for an option of its own, a program cannot contain both options. Copy lock.proto, change
// the number and go_package in the copy, keep everything else, and generate the code of your
// services with the copy. [FromDescriptors] finds the option by its full name, so it also finds the
// option of the copy. Programs with the copy must not import grpclock/lockpb.
//
// # Streams
//
// If the key of a stream has no part from a message ({req.…}), the stream holds its lock from
// before the first message until the end. Otherwise the stream acquires the lock when its first
// message arrives, before the handler receives the message. A method with one request and streamed
// replies therefore has its lock before the handler runs. A stream whose client sends no message is
// refused with INVALID_ARGUMENT. gRPC's client can repeat a refused stream only if nothing was sent
// before the refusal.
//
// When the lock is lost, the stream's context ends, and a Recv or Send that waits for the client
// returns. When the handler returns, the lock is released, even if a goroutine of the handler still
// receives. A panic in a function that makes the key comes out of Recv.
//
// A stream holds its lock as long as its handler runs, even if the client does not read, or sends
// nothing. [Rule].EndAfter limits the time of the lock: after it, Recv and Send return, and the
// stream ends with LOCK_LOST. Set the keepalive of the server, so that a client without a network
// counts as disconnected.
//
// # Replies
//
// A call that does not get its lock ends with a status that has an ErrorInfo. The domain of the
// ErrorInfo is github.com/latchkit/latchkit, and the table shows its reasons. RetryInfo and the trailer
// grpc-retry-pushback-ms have the time after which the client may retry. Without a RetryInfo, the
// client must not retry, and the trailer is -1. gRPC's own clients obey the trailer if their retry
// policy, in a service config, contains the status code. [UnaryClientInterceptor] obeys the
// RetryInfo.
//
//	LOCK_BUSY           ABORTED             another call holds the lock; retry
//	TOO_MANY_WAITERS    RESOURCE_EXHAUSTED  see locker.WithMaxWaiters; retry
//	ALREADY_DONE        ALREADY_EXISTS      once_for: the work was done before
//	INVALID_KEY         INVALID_ARGUMENT    a part of the key is missing (BadRequest names it)
//	LOCK_UNAVAILABLE    UNAVAILABLE         the lock server is unavailable; retry
//	LOCK_CLOSED         UNAVAILABLE         this process stops; retry if the handler did not run
//	LOCK_LOST           ABORTED             the lock ended before the handler; no retry
//	LOCK_MISCONFIGURED  INTERNAL            the rule is wrong, or the Locker does not support it
//	CALLER_GONE         CANCELLED           the call ended while it waited
//
// LOCK_CLOSED has no RetryInfo if the process stopped while the handler worked, because the call
// may have had an effect.
//
// No status shows the key. Interceptors outside of grpclock's interceptor get a [*Problem], which
// wraps the Locker's error. [WithObserve] receives every Problem. [Status] gives the same answers to
// the errors that a handler gets from locks and transactions.
//
// # Order
//
// Chain tracing, recovery, authentication and limits before grpclock. Then the recovery interceptor
// gets a panic after the lock was released, and unauthorised callers do not wait for locks. If an
// interceptor sends a header before grpclock refuses a call, gRPC's client cannot retry the call
// automatically.
//
// # Shutdown
//
// Make the readiness probe fail, and wait until clients do not choose this process any more. Then
// drain the Locker while the server stops, and close the Locker:
//
//	drained := make(chan error, 1)
//	go func() { drained <- l.Drain(ctx) }() // calls that wait or come later get UNAVAILABLE
//	context.AfterFunc(ctx, server.Stop)     // GracefulStop waits for open streams without an end
//	server.GracefulStop()                   // sends a GOAWAY at once; handlers finish
//	err := errors.Join(<-drained, l.Close(context.Background()))
//
// If GracefulStop began after Drain, refused clients would come back over their connections to this
// process. GracefulStop alone would wait for all calls in the queues of the locks. Close alone
// would end the contexts of handlers that hold a lock. During Drain, a stream that holds a lock may
// go on until ctx ends.
//
// # Leases across calls
//
// If a handler that holds a lock calls a service, and the service wants the same lock, the handler
// would wait for itself. So let the called service offer a method that takes no lock. The handler
// sends its fence in the request, and the called service checks the fence where it writes.
package grpclock
