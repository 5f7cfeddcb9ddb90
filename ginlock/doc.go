// Package ginlock guards Gin routes with locks.
//
//	r.POST("/orders/:id/pay", ginlock.New(l, "order:{param.id}"), pay)
//
// Requests for the same order run one at a time, in all processes that share the Redis. The context of the handler's
// request ends, with a cause, the moment the lock is lost; [FromContext] finds the lease in it, and its fence. The lock
// is given up when the handler returns or panics, whatever became of the client.
//
// # Keys
//
// A key is a template of literal text and of parts of the request: {param.id} is a parameter of the route's path,
// {query.page} of the query, {header.X-Tenant} a header; of several values the first counts, as with Gin's own methods.
// A ':' stands between two parts. Different values always make different keys: ':', '{', '}', '%' and control bytes of a
// value are percent-encoded, and a long value is replaced by its SHA-256. An empty part is refused.
//
// # Replies
//
// A request that does not get its lock is answered with application/problem+json (RFC 9457). Its code says why:
//
//	lock-busy           409  somebody else holds the lock and the wait is over, with Retry-After (see WithStatus)
//	too-many-waiters    429  locker.WithMaxWaiters is reached, with Retry-After
//	already-done        409  Rule.Once: the work was done before
//	invalid-key         400  a part of the key is missing, or the key is not allowed
//	lock-unavailable    503  the lock server cannot be asked, with Retry-After: without the lock nothing runs
//	lock-closed         503  the Locker was closed, because this process stops, with Retry-After
//	lock-lost           503  the lock ended before the handler did: what the handler did may have been overtaken
//	lock-misconfigured  500  the Locker, or the route, cannot do what the middleware was told
//	client-gone         499  nothing is written: the client gave up while it waited. The status is for the access log
//
// A handler that has written its reply before it turned out that the lock was lost cannot be answered for. That, and
// whatever else an operator should know, is told to c.Error, as a private error; a busy lock is not. [Outcome] tells a
// logger which Problem there was. None of these ever shows the key.
//
// # Order
//
// Register Recovery, otelgin, request IDs, authentication and time-outs before ginlock: then a panic finds the lock
// released, the wait shows up in the trace, and nobody waits who may not. A time-out outside bounds the wait as well.
//
// The wait is always bounded, by [WithWait], because net/http notices that a client is gone only once the request's body
// was read.
package ginlock
