// Package link brings calls to Redis nodes. It knows nothing of locks: a call is a script or a
// command, a class that says how urgent it is, and a way to be informed of the answer.
//
// The one rule: nobody waits for a call, or for an answer, that is not its own, and whoever waits
// for its own can leave.
//
//	links    all calls of one Locker through one client: one link, or on a Cluster one for each
//	         master
//	link     the calls to one node
//	list     the calls that wait for the next flight
//	flight   the calls that are under way together, on a goroutine of the link: a single call by
//	         Process, several calls as one pipeline
//	direct call   a call that its caller makes on its own goroutine, without a list and a flight
//	hung     a flight that has not returned in time; the link goes on without it
//
// A client whose exact type is *redis.Client or *redis.ClusterClient is pipelined. Any other
// client may have a Process of its own, and methods such as Pipeline that an embedded client
// promotes would bypass it. Such a client gets flights of one call each.
package link
