// Package link sends calls to Redis nodes. The package knows nothing of locks: one step of a Store,
// which package calls begins, needs one call or several. A call is a script or a command, with a
// class for its urgency and a receiver of the answer.
//
//	links    all calls of one Locker through one client: one link, or on a Cluster one for each
//	         master
//	link     the calls to one node
//	queue    the calls to one node, with or without WAIT, that wait for the next batch
//	batch    the calls that are under way together: one call by Process, several as one pipeline
//
// There is one way to a node. A call that finds few others under way is a batch of its own on the
// goroutine of its caller. When more callers meet, their calls wait in the queue for the next batch,
// which has a goroutine of [Links.Pool], and calls of one kind in it are made by one script: see
// [Together].
//
// A caller waits only for the answer to its own call. A caller whose call has a goroutine can leave
// at any time. A caller that makes its call by itself is back
//
//   - within 250 ms, if the client ends a call with its context (ContextTimeoutEnabled) or after at
//     most 200 ms;
//   - otherwise when the client gives the call up. So such a caller makes a call by itself only if
//     the node has just answered soon, and only a call of [Links.Send].
//
// A client whose exact type is *redis.Client or *redis.ClusterClient is pipelined. A client of any
// other type gets batches of one call each, on goroutines. Such a client may embed another client
// and have its own Process. The promoted methods of the embedded client, such as Pipeline, would
// bypass this Process.
package link
