package locker

import "time"

// WithReplicaAck counts a lease as granted, renewed or extended only when n replicas have acknowledged it within the time
// given. A grant with too few acknowledgements is undone and fails with ErrUnavailable; a renewal with too few did not
// happen, so the lease ends in time if that goes on. So what a holder relies on is known to n replicas, and a failover to
// one of them loses no lease. A failover to another one still may: Redis chooses by itself. Let the data check the fence.
//
// The price: an acquire and a batch of renewals last until the replicas have answered, and a grant that was told by
// message is asked for once more. within must be shorter than the
// ReadTimeout of the client, which must be able to pipeline, as those of go-redis are. Default: grants count at once.
func WithReplicaAck(n int, within time.Duration) SingleOption {
	return singleOption(func(c *config) { c.acked, c.replicas, c.ackedWithin = true, n, within })
}

// WithRenewClient sends renewals through a client of its own, so that they do not queue for connections behind the
// service's other traffic. It must lead to the same server, or the same cluster. Default: the Locker's client.
func WithRenewClient(client Client) SingleOption {
	return singleOption(func(c *config) { c.renewClient, c.renewApart = client, true })
}
