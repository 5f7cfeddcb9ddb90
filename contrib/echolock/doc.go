// Package echolock guards Echo 4 routes with locks.
//
//	e.POST("/orders/:id/ship", ship, echolock.MustNew(l, "order:{param.id|int}"))
//
// Package echolock is httplock for Echo: keys, options and replies are the same as in httplock.
// There are two differences, because Echo differs from net/http. First, an error that a handler
// returns is a failure. Echo's HTTPErrorHandler writes the reply before the lock is released, so
// the reply can be held back, stored or replaced like any other reply. The middlewares outside of
// echolock also receive the error. Second, a handler that returns nil has succeeded if its status
// is below 400, even if it has written nothing.
//
// All parts of keys are read with Echo's own methods:
//
//	{param.id|int} a parameter of the route's path, with a filter as in httplock
//	{query.page}   echo.Context.QueryParam, and so on
//	{ip}           echo.Context.RealIP
//	{value.user}   what an earlier middleware has put into Echo's context by Set
//
// A key reads the body only if echo.Context.Bind reads it as JSON: the Content-Type is
// application/json, in lower case. Other requests are answered 415.
//
// echo.Context.Bind fills a struct from the path, for some methods from the query, and then from
// the body. So the body of a client can replace the parameter that is in the key, also in a field
// without a json tag. Read what is in the key by echo.Context.Param, or give the field the tag
// json:"-".
//
// A request without a route takes no lock, and Echo answers it. Do not register a lock by Echo.Pre:
// the route is not known there, and every request is answered 404. Put a middleware for time-outs
// outside of the lock, because inside it ends the lock while the handler continues. Use Echo's
// ContextTimeout and not Echo's Timeout, which gives the echo.Context to another request while the
// handler still uses it.
//
// To shut down, call Drain of the Locker, then Shutdown of Echo, and then Close of the Locker, as
// package httplock documents.
//
// Echo 5 uses net/http's types in its middlewares, so it needs no package of its own. The test
// TestEchoFiveGoesThroughHTTPLock shows the ten lines that connect Echo 5 to httplock.
package echolock
