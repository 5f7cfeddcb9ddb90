// Package grpclock guards gRPC methods with locks. Which lock, the method says in its .proto file:
//
//	import "latchkit/lock/v1/lock.proto";
//
//	rpc Reserve(ReserveRequest) returns (ReserveReply) {
//	  option (latchkit.lock.v1.lock) = { key: "sku:{req.sku}" wait { seconds: 2 } };
//	}
//
// and the server's interceptors see to it:
//
//	rules := grpclock.FromDescriptors()
//	unary, err := grpclock.UnaryServerInterceptor(l, rules)
//	…
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary))
//	pb.RegisterInventoryServer(server, inventory)
//	err = rules.Bind(server) // finds mistakes now, not with the first call
//
// Calls for the same item run one at a time, in all processes that share the Redis. The handler's context ends, with a
// cause, the moment the lock is lost; locker.FromContext finds the lease in it, and its fence. The lock is given up when the
// handler returns or panics, whatever became of the client.
//
// lock.proto lies in grpclock/proto; protoc -I $(go list -m -f '{{.Dir}}' github.com/latchkit/latchkit)/grpclock/proto
// finds it. A [RuleMap] says the same in Go, for methods whose .proto is not yours; [KeyOf] makes a typed function the key;
// a service that is a [KeyProvider] decides call by call.
//
// # Keys
//
// A key is a template, as package [github.com/latchkit/latchkit/locker/key] describes it. {req.order_id} is a field of the
// request, {req.item.sku} one inside a message, {meta.x-tenant} metadata, of several values the first. Text, numbers, booleans,
// enums (by number) and bytes can be parts of a key. A part that is empty, or a field with presence that is not set, is refused
// with INVALID_ARGUMENT.
//
// # Streams
//
// A stream whose key needs no request is under its lock from the first to the last message. Otherwise the lock is taken with
// the first message that the handler receives, before it sees it: with a request that is streamed to, that is before the
// handler runs at all. Clients can repeat a refused stream by themselves only if nothing was sent before. When the lock is
// lost, the stream's context ends, a Recv that is waiting returns, and no Send goes out any more.
//
// # Replies
//
// A call that does not get its lock ends with a status that carries an ErrorInfo, whose domain is [Domain] and whose reason says
// why; when to come back stands in RetryInfo, and in the trailer grpc-retry-pushback-ms, which gRPC's own clients obey if their
// retry policy has the code: see [RetryServiceConfig]. [UnaryClientInterceptor] retries by the RetryInfo.
//
//	LOCK_BUSY           ABORTED             somebody else holds the lock and the wait is over (see WithBusyCode); retry
//	TOO_MANY_WAITERS    RESOURCE_EXHAUSTED  locker.WithMaxWaiters is reached; retry
//	ALREADY_DONE        ALREADY_EXISTS      once: the work was done before
//	INVALID_KEY         INVALID_ARGUMENT    a part of the key is missing, or the key is not allowed; BadRequest names the field
//	LOCK_UNAVAILABLE    UNAVAILABLE         the lock server cannot be asked: without the lock nothing runs; retry
//	LOCK_CLOSED         UNAVAILABLE         the Locker was closed, because this process stops; retry
//	LOCK_LOST           ABORTED             the lock ended before the handler did: what it did may have been overtaken. It is
//	                                        not retried by itself: the trailer says -1
//	LOCK_MISCONFIGURED  INTERNAL            the rule, or the Locker, cannot do that
//	DELEGATION_INVALID  INVALID_ARGUMENT    a delegation came that cannot be read
//	DELEGATION_REFUSED  FAILED_PRECONDITION a delegation came that does not hold, or not any more
//	CALLER_GONE         CANCELLED, DEADLINE_EXCEEDED  the call ended while it waited
//
// None of these shows the key. Interceptors outside of this one get a [*Problem], which has the Locker's error inside.
//
// # Order
//
// Chain tracing, recovery, authentication and limits before grpclock: then a panic finds the lock released, and nobody
// waits who may not. An interceptor that has sent a header has made automatic retries impossible.
//
// # Leases across calls
//
// A handler that holds a lock and calls a service that wants the same one would wait for itself. With a delegation the called
// service joins its caller's lease; see [WithDelegation], [WithDelegated] and package
// [github.com/latchkit/latchkit/locker/delegate].
package grpclock
