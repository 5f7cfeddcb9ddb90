// Package delegate lets a call in another process use the lease of its caller. Assume that a
// service wants a lock, and that the caller of the service holds this lock. Without a delegation,
// the service would wait for its caller.
//
//	sender, err := delegate.NewSender()          // in the service that calls
//	transport, err := delegate.Transport(nil, sender, "inventory:8080")
//	client := http.Client{Transport: transport}
//
//	receiver, err := delegate.NewReceiver(l)     // in the called service: l is a locker.Locker
//	r, err = receiver.Request(r)
//	err = locker.Run(r.Context(), receiver, rule, …)
//
// The adapters receive delegations by an option: ginlock.WithDelegation, httplock.WithDelegation
// and grpclock.WithDelegation. For the client, grpclock has grpclock.WithDelegated.
//
// A call that joins a lease runs under its caller's lease, with the same fence. The lock server
// records each call that has joined. The call cannot release the lease. After the lease was
// released, the context of the call ends, with locker.ErrLost as its cause, within one second. If
// Redis does not answer, the context ends within three seconds. As with every lease, let the
// protected data check the fence.
//
// # What travels
//
// The token with which the caller's lease could be released is never sent. There are two kinds
// of delegations:
//
//   - A random secret. Its SHA-256 is stored with the lease on Redis. A program that reads this
//     hash on Redis cannot use the delegation. A random secret needs no signing key, and becomes
//     invalid when the lease ends. It costs the caller a round trip. Random secrets are the
//     default.
//   - With [WithSigning], a signature (HMAC-SHA-256) under a key that the services share. A
//     signature costs no round trip. It names the fence, so it also becomes invalid when the lease
//     ends.
//
// Both kinds are made for one key, for a bounded number of hops, and for calls that begin within
// [WithTimeout]. A signature is also made for the audience that [WithAudience] names.
//
// # Whom to trust
//
// A delegation permits its bearer to enter a critical section. So a transport of a Sender has a
// list of targets. The transport sends a delegation only to these targets, and removes the
// delegation from all other calls. A service accepts delegations only with a Receiver. Without a
// Receiver, the adapter (httplock, grpclock …) removes the delegation from each incoming call, so
// that no handler forwards it. A delegation does not travel in the baggage of a trace, because
// baggage would travel on to every service. Accept delegations only where your own services call,
// over connections that other programs cannot read.
package delegate
