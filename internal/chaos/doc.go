// Package chaos stands between a Redis client and its server and breaks what
// goes through: the reply that never arrives although the command was executed,
// the request that comes late, the network that swallows everything.
//
//	proxy := chaos.NewProxy(t, server.Addr())
//	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
//
//	lost := proxy.LoseReplies(1, chaos.Containing("my-key"))
//	// … the client sends its command, the server executes it …
//	lost.Await(t, 1) // it really happened
//
// The proxy understands as much of the protocol as it takes to tell which reply
// answers which request. It counts the commands that clients sent, so that a
// test can say what an operation costs on the wire.
//
// What a master sends to its replicas is no protocol of requests and replies: a
// [Pipe] passes it on, and freezes it.
//
// Faults are switched on and off while traffic flows. Each counts how often it
// struck: a test that breaks nothing proves nothing.
package chaos
