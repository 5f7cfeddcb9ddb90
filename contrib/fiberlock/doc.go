// Package fiberlock guards Fiber 3 routes with locks.
//
//	app.Post("/orders/:id/ship", fiberlock.MustNew(l, "order:{param.id|int}"), ship)
//
// Package fiberlock is httplock for Fiber: keys, options and replies are the same as in httplock.
// There are some differences, because fasthttp differs from net/http.
//
// An error that a handler returns is a failure. The ErrorHandler of the app writes the reply before
// the lock is released. So this reply can be held back, stored or replaced like any other reply.
// The Fiber middlewares outside of fiberlock see this reply, but not the error. A handler that
// returns nil has succeeded when its status is below 400.
//
// fasthttp sends a reply when all handlers have returned. So after the loss of a lock, the reply is
// always replaced, and a client that reads slowly does not keep a lock. A body that a handler
// streams (SendStream, SendStreamWriter) is sent after the release of the lock, too. Under
// [NewIdempotency], the body is read while the lock is held. If the stream fails then, nothing of
// it is sent or stored, and the ErrorHandler writes the reply. A hijacked connection, such as a
// WebSocket, is also used after the release of the lock. Do not hijack under [NewIdempotency]: a
// repeated request gets an empty reply 200 instead.
//
// c.End sends the response at once. So a handler that calls c.End replies before its lock is
// released, also if the lock is lost, and the response is not held back. Do not call it behind a
// lock: return instead.
//
// fasthttp reads the body of a request before it calls a handler. In an app with
// StreamRequestBody, fiberlock reads the body before the lock is taken. A body longer than
// httplock.WithMaxBody gets the reply 413, unless httplock.WithStreamedBody leaves the body to the
// handler. fasthttp itself puts the files of a multipart form on the disk, and a long form is not
// refused for that.
//
// fasthttp does not detect that a client disconnects. On Linux, fiberlock detects this while the
// request waits for its lock, and ends the wait within half a second. When a client disconnects
// during its handler, the handler continues.
//
// Do not use Fiber's middleware timeout in a guarded route. It runs a handler in another goroutine,
// and replies itself when the time is over. Inside of the lock, it ends the lock while the handler
// continues. Outside of the lock, a handler that writes its response after that time writes it
// together with timeout, which is a data race, as without a lock. fiberlock itself writes no reply
// then. Limit the wait by httplock.WithWait and the work by the Rule's EndAfter. Or let a
// middleware outside of the lock call c.SetContext with a context that has a deadline. When this
// deadline has ended the wait or the handler, fiberlock returns an error, and the ErrorHandler
// writes the reply.
//
// c.Context() is the context that ends with the lock. Fiber's c itself is a context too, but this
// context never ends.
//
// All parts of keys are read with Fiber's own methods:
//
//	{param.id|int} c.Params, a parameter of the path, with a filter as in httplock
//	{query.page}   c.Query, and so on
//	{body.sku}     a member of the JSON in c.Body, if c.Bind().Body reads the body as JSON
//	{ip}           c.IP
//	{value.user}   what an earlier middleware has put into c.Locals
//
// If a query parameter, a header or a cookie comes several times with different values, the request
// is answered 400: c.Query returns the first value, and c.Bind().Query the last, of all names that
// differ only in their case. c.Bind().All fills a field from the first source that has its name:
// the path, the body, the query, headers, cookies. So read what is in the key by the method of its
// source.
//
// The middleware must be a handler of the route, because Fiber does not know the route's parameters
// yet when it runs the handlers of App.Use. There, a key without parameters locks every request,
// also of unknown routes. For many routes see [FromRules].
//
// To shut down, call Drain of the Locker beside app.ShutdownWithContext, and then Close of the
// Locker, as package httplock documents.
package fiberlock
