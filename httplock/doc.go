// Package httplock guards net/http handlers with locks, for ServeMux, chi, gorilla/mux, go-zero,
// Kratos, huma and other routers that use net/http. Echo 4 and Fiber 3 have packages of their own,
// contrib/echolock and contrib/fiberlock, because their handlers return errors.
//
//	mux.Handle("POST /orders/{id}/ship", httplock.MustNew(l, "order:{param.id|int}")(ship))
//
// Requests for the same order run one at a time, in all processes that share the Redis. A request
// waits for 5 s, unless WithWait sets another time, and is then answered 409 with Retry-After. The
// context of the handler's request ends, with a cause, when the lock is lost; after a FLUSHALL, a
// DEL or a failover this is at the next renewal, up to 37 percent of the TTL later.
// [FromContext] finds the lease, with its fence, in the context. The lock is released when the
// handler returns or panics, also if the client has left.
//
// A lock does not make a request take effect once: a repeated request waits, and runs again. See
// Rule.OnceFor and [NewIdempotency].
//
// [FromRules] guards many routes by one table. [NewIdempotency] stores responses, so that a
// repeated request gets the stored response and does not run again. [New] and NewIdempotency return
// an error; MustNew and MustIdempotency panic with its text, and are for the line of a route.
//
// # Keys
//
// A key is a template of literal text and of parts of the request. Package key describes what keys
// guarantee. These are the parts:
//
//	{param.id}          a parameter of the route's path, see WithPathValues
//	{query.page}        a value of the URL's query
//	{header.X-Tenant}   a header
//	{cookie.session}    a cookie
//	{ip}                the client's address; behind a proxy, give WithPart("ip", …)
//	{claim.sub}         a claim that authentication has found, see WithClaims
//	{body.items.*.sku}  one key for each element; all of them are locked together
//	{body.items.0.sku}  a member of the body's JSON; the body stays readable
//	{name}              what a function of the program returns, see WithPart
//	{param.id|int}      a part with a filter: |int, |uuid, |lower, |nfc or |text
//
// A filter gives each identity one spelling. Without a filter, a client gets a lock of its own for
// /orders/042, although the handler reads the order 42. With |text, each text is an identity of its
// own. So that no spelling does the work again, [FromRules] refuses a Rule with OnceFor if a part
// that the client chooses has no filter: a param, a query, a header, a cookie, or a part of the
// body. It cannot check a OnceFor that a function of [WithRule] sets for each request.
//
// If a part has several values, the first value counts, as with r.URL.Query().Get and r.Header.Get.
// r.FormValue reads a form before the query. A body is read for a key if it has no Content-Type, or
// a type of JSON. If the body has a Content-Encoding, a middleware outside of the lock must decode
// it and remove the header. Redis sees a part that ends with |hmac, such as
// {header.Authorization|hmac}, only as its HMAC, see [WithSecret].
//
// # Order
//
// The lock lasts until the handler returns. A handler inside of the lock that returns while work
// goes on, such as http.TimeoutHandler or a framework's middleware for time-outs, ends the lock
// before the work. Put time-outs outside of the lock: http.TimeoutHandler directly inside is
// refused with lock-misconfigured.
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
//	lock-lost               503  the lock ended before the handler did; Idempotency: Retry-After
//	lock-misconfigured      500  the Locker or the route does not fit the options
//	no-route                404  ginlock: there is no such route
//	client-gone             499  the client left while it waited; for the access log
//
// A lost lock replaces the reply only if the handler has not begun its reply. For loggers,
// [WithObserve] receives each Problem. The reply and the Problem do not show the key. [Reply] gives
// the same replies to the errors that a handler gets from locks and transactions.
//
// # Slow clients
//
// The body of a request is read before the lock is taken, up to [WithMaxBody]. Handlers can read
// the body as if it had not been read. So a client that sends its body slowly does not hold the
// lock, and net/http notices a client that leaves while its request waits. Over HTTP/1.1, net/http
// notices this only if the whole body was read: with a longer body, or with [WithStreamedBody], the
// request of a client that has left waits on. ReadTimeout and WriteTimeout of http.Server bound for
// how long a client may block a handler that holds the lock, and Rule.EndAfter bounds the lock.
//
// Once a handler has written a status, the status says whether the work is done. A later write that
// fails changes nothing: see [WithSuccess].
//
// # Clients
//
// A refusal with a Retry-After means that nothing was done, or, with an Idempotency-Key, that the
// same request may be sent again. It names the time of the next attempt.
// docs/recipes/client-retry.md has a client that obeys it.
//
// # Shutdown
//
// Make the readiness probe fail, and wait until the load balancer has noticed. Then drain the
// Locker while the server shuts down, and close the Locker:
//
//	drained := make(chan error, 1)
//	go func() { drained <- l.Drain(ctx) }() // refuses the waiters, and waits for the holders
//	err := errors.Join(server.Shutdown(ctx), <-drained, l.Close(context.Background()))
//
// During Drain, requests that hold a lock finish. Requests that wait for a lock, and those that
// come later, are answered 503 with Retry-After and Connection: close, so that the next attempt
// meets another process. Close alone would end the contexts of handlers.
package httplock
