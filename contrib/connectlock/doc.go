// Package connectlock guards connect-go handlers with the locks of package grpclock. The annotation
// in the .proto file, the options and the statuses are the same as in grpclock.
//
//	rules := grpclock.FromDescriptors()
//	locks, err := connectlock.NewInterceptor(l, rules)
//	…
//	err = rules.Bind(connectlock.Services("inventory.v1.Inventory"))
//	…
//	path, handler := inventoryv1connect.NewInventoryHandler(inventory,
//		connect.WithInterceptors(locks))
//
// A call that does not get its lock ends with a connect.Error, whose code and details are those
// that package grpclock documents. For clients that speak gRPC, the trailer Grpc-Retry-Pushback-Ms
// is set. For clients that speak Connect, the header Retry-After is set. connect-go sends a header
// before each status, so the retries of gRPC's own clients ignore the trailer: use
// grpclock.UnaryClientInterceptor there. If a header of the request has several values, the key
// contains the first value.
//
// Handlers read headers as they do without a lock. grpc.SetHeader and metadata.FromIncomingContext
// also work in handlers.
//
// A client that does not read loses the lock of its stream, as package grpclock documents. As with
// every handler of connect-go, the call itself ends only when the client reads, sends or
// disconnects. So set the WriteTimeout of the server.
//
// To shut down, call Drain of the Locker, then http.Server.Shutdown, and then Close of the Locker.
// During Drain, handlers that hold a lock finish, and all other calls get Unavailable with a time
// to come back.
//
// The Connect protocol lets a client send a unary request as a GET without a body. Then the URL
// contains the request. Such a call is guarded like any other call.
package connectlock
