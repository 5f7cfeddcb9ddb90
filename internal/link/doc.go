// Package link sends calls to Redis nodes. The package knows nothing of locks: one step of a Store,
// which package calls begins, needs one call or several. A call is a script or a command, with a
// class for its urgency and a receiver of the answer.
//
// One rule holds: a caller waits only for the answer to its own call. It can leave at any time, but
// a caller that makes its call on its own goroutine leaves within 250 ms.
//
//	links    all calls of one Locker through one client: one link, or on a Cluster one for each
//	         master
//	link     the calls to one node
//	lane     the list and the flights of calls with or without WAIT
//	list     the calls that wait for the next flight
//	flight   the calls that are under way together, on a goroutine of Links.Pool: a single call by
//	         Process, several calls as one pipeline
//	window   the context that calls share which begin within 50 ms
//	direct   a call that its caller makes on its own goroutine, without a list and a flight
//	hung     a flight that has not returned in time; the link continues without it
//
// A client whose exact type is *redis.Client or *redis.ClusterClient is pipelined. A client of any
// other type gets flights of one call each. Such a client may embed another client and have its own
// Process. The promoted methods of the embedded client, such as Pipeline, would bypass this
// Process.
package link
