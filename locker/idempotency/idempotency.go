// Package idempotency remembers the responses to requests, so that a request which is sent again is answered and not run
// again. It is what ginlock.Idempotency and httplock.Idempotency keep their responses in: they hold a lock on the key while
// they load, run and save, so a Store has to be no more than a map with a lifetime.
//
// [NewRedis] keeps responses where all processes find them, [NewMemory] in this process.
package idempotency

import (
	"context"
	"time"
)

// A Record is a request and its response.
type Record struct {
	// Fingerprint tells the request from another one that comes with the same key.
	Fingerprint [32]byte
	// Status, Header and Body are the response.
	Status int
	Header map[string][]string
	Body   []byte
	// Partial: the response was too large to be kept. Only its Status is here.
	Partial bool
}

// A Store keeps Records. It is safe for concurrent use. A call that takes long is its caller's outage: a Store bounds its
// calls by itself, and ctx ends them as well.
type Store interface {
	// Load returns the Record of key, and whether there is one.
	Load(ctx context.Context, key string) (rec Record, found bool, err error)
	// Save keeps rec for lifetime, unless there is a Record of key already: the first response is the one that is
	// repeated. It does not say which.
	Save(ctx context.Context, key string, rec Record, lifetime time.Duration) error
}
