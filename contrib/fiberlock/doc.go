// Package fiberlock guards Fiber 3 routes with locks.
//
//	app.Post("/orders/:id/pay", fiberlock.New(l, "order:{param.id|int}"), pay)
//
// It is httplock for Fiber: keys, options and replies are those of httplock. What differs is what
// fasthttp does differently.
//
// An error that a handler returns is a failure: the ErrorHandler of the app writes the reply before
// the lock is released, so the reply can be held back, stored or replaced like any other. Fiber
// middlewares outside see the reply and no error, as with Fiber's own logger. A handler that
// returns nil has succeeded when its status is below 400.
//
// fasthttp sends a reply when all handlers have returned. So a reply is always replaced when the
// lock was lost, and a client that reads slowly holds no lock. A body that a handler streams
// (SendStream, SendStreamWriter) is also sent then, after the release of the lock: only under
// [Idempotency] and httplock.WithBufferedResponse is it read while the lock is held. The same is
// true of a hijacked connection, such as a WebSocket.
//
// fasthttp reads the body of a request before it calls a handler. In an app with
// StreamRequestBody, the body is read before the lock is taken; one that is longer than
// httplock.WithMaxBody is answered 413, unless httplock.WithStreamedBody leaves it to the handler.
//
// fasthttp does not notice a client that leaves. On Linux, fiberlock does while the request waits
// for its lock: the wait ends within half a second. A handler that runs is not ended by its client.
//
// The context that ends with the lock is c.Context(). Fiber's c is a context too, and never ends.
//
//	{param.id}     a parameter of the route's path, as c.Params returns it
//	{ip}           c.IP
//	{value.user}   what an earlier middleware has put into c.Locals
//
// The middleware must be a handler of the route: in App.Use, Fiber does not know the parameters
// yet. For many routes see [FromRules].
package fiberlock
