package locker

import "time"

// WithReplicaAck counts a lease as granted, renewed or extended only when n replicas have
// acknowledged it within the given time. A grant with too few acknowledgements is undone and fails
// with ErrUnavailable. A renewal with too few acknowledgements does not count, so the lease ends in
// time if that goes on. So n replicas know of every lease that a holder relies on, and a failover
// to one of them loses no lease. A failover to another replica still may, because Redis chooses the
// replica by itself. Let the data check the fence.
//
// The price: an acquire and a batch of renewals last until the replicas have answered, and a grant
// that came by message is confirmed with one more call. within must be shorter than the client's
// ReadTimeout. The client must be able to pipeline; those of go-redis are. Default: a grant counts
// at once.
func WithReplicaAck(n int, within time.Duration) SingleOption {
	return singleOption(func(c *config) { c.acked, c.replicas, c.ackedWithin = true, n, within })
}

// WithRenewClient sends renewals through a client of their own, so that they do not wait for
// connections behind other traffic of the service. The client must lead to the same server, or the
// same cluster. Default: the Locker's client.
func WithRenewClient(client Client) SingleOption {
	return singleOption(func(c *config) { c.renewClient, c.renewApart = client, true })
}
