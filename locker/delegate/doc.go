// Package delegate hands a lease to a call in another process, so that a service which wants a lock
// that its caller holds does not wait for its caller.
//
//	sender, err := delegate.NewSender()            // in the service that calls
//	client := http.Client{Transport: transport}    // transport, err := delegate.Transport(nil, sender, "inventory:8080")
//
//	receiver, err := delegate.NewReceiver(l)       // in the service that is called: a locker.Locker
//	r, err = receiver.Request(r)
//	err = locker.Run(r.Context(), receiver, rule, …)
//
// The adapters do the second half by an option: ginlock.WithDelegation, httplock.WithDelegation and
// grpclock.WithDelegation, and grpclock.WithDelegated for the client.
//
// A call that joins runs under its caller's lease, with the same fence. It is counted on the server
// by itself: it cannot release the lease or outlive it, and its context ends, with locker.ErrLost
// as its cause, at most a second after the lease was given up, three if Redis does not answer. What
// is protected should check the fence, as always.
//
// # What travels
//
// The caller's token for the lock, with which it could be released, never does. There are two kinds
// of delegations:
//
//   - a random secret, of which the lease on Redis knows the SHA-256. Whoever can read Redis cannot use it, there is
//     no key to be kept, and it ends with the lease. It costs the caller a round trip. This is the default.
//   - with [WithSigning], a signature (HMAC-SHA-256) under a key that the services share, which costs no round trip. It names
//     the fence, so it ends with the lease as well.
//
// Both are made for one key, for a bounded number of hops, and for calls that begin within
// [WithTimeout]; a signature also for the audience that [WithAudience] names.
//
// # Whom to trust
//
// A delegation is a bearer's right to enter a critical section. So a Sender's transports send it to
// the targets that they were told, and to no other; nothing takes it that was not told to; and
// whoever is not told to takes it away from what comes in. It is no baggage, which travels on to
// anybody. Take delegations only where your own services call, over connections that nobody else
// can read.
package delegate
