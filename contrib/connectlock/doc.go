// Package connectlock guards connect-go handlers with the locks of package grpclock: the same
// annotation in the .proto file, the same options, the same statuses.
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
// that package grpclock documents. Its trailer Grpc-Retry-Pushback-Ms is set for clients that speak
// gRPC, and the header Retry-After for those that speak Connect. If a header has several values,
// the key contains the first one.
//
// Handlers read headers as without a lock. grpc.SetHeader and metadata.FromIncomingContext work in
// them as well. A service that is a grpclock.KeyProvider is given to [NewServiceInterceptor].
//
// A client that does not read loses the lock of its stream, as package grpclock documents. The call
// itself ends when the client reads, sends or disconnects, as with every handler of connect-go: set
// the WriteTimeout of the server.
//
// The Connect protocol lets a client send a unary request as a GET, without a body: the request is
// the message in the URL, and is guarded in the same way.
package connectlock
