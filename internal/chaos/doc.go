// Package chaos is a proxy between a Redis client and its server. The proxy causes faults: a reply
// is lost although the command was executed, a request comes late, or the network delivers nothing
// for a while.
//
//	proxy := chaos.NewProxy(t, server.Addr())
//	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
//
//	lost := proxy.LoseReplies(1, chaos.Containing("my-key"))
//	// … the client sends its command, the server executes it …
//	lost.Await(t, 1) // the fault has really happened
//
// The proxy parses enough of the protocol to match replies with requests. It counts the commands
// that clients send, so that a test can check what an operation costs.
//
// Replication has no requests and replies, so the proxy cannot parse it. A [Pipe] passes
// replication on, and can freeze it. A Pipe can also make all answers of a server late, for as long
// as a test needs.
//
// Faults are switched on and off during traffic. Each fault counts its hits, so that a test can
// check that the fault happened.
package chaos
