// Package delegate lets a call in another process use the lease of its caller. Without a
// delegation, a service that wants a lock which its caller holds would wait for its caller.
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
// A call that joins runs under its caller's lease, with the same fence. The lock server records
// each call that has joined. The call cannot release the lease or outlive it. Its context ends,
// with locker.ErrLost as its cause, at most one second after the lease was released, or three
// seconds if Redis does not answer. As with every lease, let the protected data check the fence.
//
// # What travels
//
// The token with which the caller's lease could be released never travels. Delegations have two
// kinds:
//
//   - A random secret. Its SHA-256 is stored with the lease on Redis. A program that reads this
//     hash on Redis cannot use the delegation. A random secret needs no signing key, and it ends
//     with the lease. It costs the caller a round trip. Random secrets are the default.
//   - With [WithSigning], a signature (HMAC-SHA-256) under a key that the services share. A
//     signature costs no round trip. It names the fence, so it ends with the lease as well.
//
// Both kinds are made for one key, for a bounded number of hops, and for calls that begin within
// [WithTimeout]. A signature is also made for the audience that [WithAudience] names.
//
// # Whom to trust
//
// A delegation permits its bearer to enter a critical section. So a Sender's transports send a
// delegation only to the targets that they are given, and remove it from all other calls. A service
// accepts delegations only with a Receiver. A server without a Receiver removes them from incoming
// calls. A delegation is not baggage, because baggage would travel on to every service. Accept
// delegations only where your own services call, over connections that other programs cannot read.
package delegate
