// Package echolock guards Echo 4 routes with locks.
//
//	e.POST("/orders/:id/pay", pay, echolock.New(l, "order:{param.id|int}"))
//
// It is httplock for Echo: keys, options and replies are those of httplock. Two things differ, as
// Echo does. An error that a handler returns is a failure: Echo's HTTPErrorHandler writes the reply
// before the lock is released, so the reply can be held back, stored or replaced like any other.
// The error is also returned to the middlewares outside. A handler that returns nil has succeeded
// if its status is below 400, even if it has written nothing.
//
//	{param.id}     a parameter of the route's path
//	{ip}           echo.Context.RealIP
//	{value.user}   what an earlier middleware has put into Echo's context by Set
//
// Echo 5 speaks net/http's types in its middlewares and needs no package of its own: see the test
// TestEchoFiveGoesThroughHTTPLock for the ten lines that it takes.
package echolock
