// Package ginlock guards Gin routes with locks.
//
//	r.POST("/orders/:id/ship", ginlock.MustNew(l, "order:{param.id|int}"), ship)
//
// Requests for the same order run one at a time, in all processes that share the Redis. A request
// waits for 5 s, unless WithWait sets another time, and is then answered 409 with Retry-After. The
// context of the handler's request ends, with a cause, when the lock is lost; after a FLUSHALL, a
// DEL or a failover this is at the next renewal, up to 37 percent of the TTL later.
// Work with this context, and not with Gin's own. [FromContext] finds the lease, with its fence, in
// the context. The lock is released when the handler returns or panics, also if the client has
// left.
//
// A lock does not make a request take effect once: a repeated request waits, and runs again. See
// Rule.OnceFor and [NewIdempotency].
//
// Package ginlock is httplock for Gin. The documentation of httplock applies here, too: its
// options, such as httplock.WithWait, and its parts of keys set a lock of ginlock up. Only what
// needs Gin's context has a name in ginlock.
//
// [FromRules] guards many routes by one table, in Go or in JSON, and [Guard.Mount] installs the
// table. When the program starts, FromRules reports Rules with wrong parameters, and the function
// that Mount returns reports Rules without a route. [NewIdempotency] stores responses, so that a
// repeated request gets the stored response and does not run again.
//
// # Keys
//
// A key is a template of literal text and of parts of the request. Package key describes what keys
// guarantee. These are the parts:
//
//	{param.id}          a parameter of the route's path
//	{query.page}        a value of the URL's query
//	{header.X-Tenant}   a header
//	{cookie.session}    a cookie, as gin.Context.Cookie returns it
//	{ip}                gin.Context.ClientIP
//	{value.user}        what an earlier middleware has put into Gin's context by Set
//	{claim.sub}         a claim that authentication has found, see WithClaims
//	{body.items.*.sku}  one key for each element; all of them are locked together
//	{body.items.0.sku}  a member of the body's JSON; see below
//	{name}              what a function of the program returns, see httplock.WithPart
//	{param.id|int}      a part with a filter: |int, |uuid, |lower, |nfc or |text
//
// A filter gives each identity one spelling. Without a filter, a client gets a lock of its own for
// /orders/042, although the handler reads the order 42. With |text, each text is an identity of its
// own. So that no spelling does the work again, [FromRules] refuses a Rule with OnceFor if a part
// that the client chooses has no filter: a param, a query, a header, a cookie, or a part of the
// body. It cannot check a OnceFor that a function of [WithRule] sets for each request.
//
// If a part has several values, the first value counts, as with Gin's own methods. ShouldBind fills
// a field from the form in the body before the query, so read {query.page} with c.Query or
// ShouldBindQuery. Redis sees a part that ends with |hmac, such as {header.Authorization|hmac},
// only as its HMAC, see [httplock.WithSecret]. A request with an empty part is refused.
//
// A key reads the body only if Gin's Bind and ShouldBind read it as JSON: the method is not GET,
// and the Content-Type is application/json, in lower case. Gin reads every other body as something
// else; without a type, even the query can fill the struct of the handler. So these requests are
// answered 415. The handler can still read the body, in every way that Gin has.
//
// # Replies
//
// A request that does not get its lock is answered with application/problem+json (RFC 9457). The
// member code of this reply gives the reason:
//
//	lock-busy               409  another request holds the lock; Retry-After
//	too-many-waiters        429  locker.WithMaxWaiters is reached; Retry-After
//	already-done            409  Rule.OnceFor: the work was done before
//	invalid-key             400  a part of the key is missing or not allowed, or the body is broken
//	body-too-large          413  the body is larger than WithMaxBody
//	unsupported-media-type  415  the key needs JSON
//	idempotency-key-reused  422  Idempotency: another request came with this key
//	lock-unavailable        503  no answer of the lock server; Retry-After (WithFailOpen)
//	answers-unavailable     503  Idempotency: the store of answers failed; Retry-After
//	lock-closed             503  the Locker was closed, this process stops; Retry-After
//	lock-lost               503  the lock ended before the handler did
//	lock-misconfigured      500  the Locker or the route does not fit the options
//	no-route                404  there is no such route; Gin itself answers
//	client-gone             499  the client left while it waited; for the access log
//
// A lost lock replaces the reply only if the handler has not begun its reply. Each failure that an
// operator should know of is added to c.Errors as a private error. A busy lock is not such a
// failure. For loggers, [Outcome] returns the Problem. The errors in c.Errors and the result of
// Outcome do not show the key.
//
// # Order
//
// Register Recovery, otelgin, request IDs, authentication and time-outs before ginlock. Then
// Recovery gets a panic after the lock was released, the trace contains the wait, and unauthorised
// clients do not wait. A time-out that ends the request's context also ends the wait.
// gin-contrib/timeout does not end the context. It answers the request while the handler continues,
// and Gin may then use the handler's Gin context for another request. Inside of the lock, it also
// ends the lock while the handler continues.
//
// Engine.HandleContext inside of [NewIdempotency] gives its handlers Gin's own writer. Their
// response is not stored: ginlock reports lock-misconfigured, and a repeated request is answered
// 409, already-done. Call the other handler directly.
//
// The wait always ends after the time of [httplock.WithWait]. The body of a request is read before
// the lock is taken. So a client that sends its body slowly does not hold the lock, and net/http
// notices a client that leaves while its request waits. ReadTimeout and WriteTimeout of http.Server
// bound for how long a client may block a handler that holds the lock.
//
// To shut down, make the readiness probe fail, and wait until the load balancer has noticed. Then
// drain the Locker while the server shuts down, and close the Locker:
//
//	drained := make(chan error, 1)
//	go func() { drained <- l.Drain(ctx) }() // refuses the waiters, and waits for the holders
//	err := errors.Join(server.Shutdown(ctx), <-drained, l.Close(context.Background()))
//
// During Drain, requests that hold a lock finish. Requests that wait for a lock, and those that
// come later, are answered 503 with Retry-After and Connection: close, so that the next attempt
// meets another process. Close alone would end the contexts of handlers.
package ginlock
