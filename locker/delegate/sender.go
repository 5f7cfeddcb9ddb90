package delegate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// A Sender makes tokens for calls. A token delegates the leases under which its call is made. A
// Sender is safe for concurrent use.
type Sender struct{ config }

// NewSender returns a Sender. The error names the invalid option.
func NewSender(opts ...Option) (*Sender, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("delegate: NewSender: %w", err)
	}
	return &Sender{c}, nil
}

// Token returns the token that a call must carry to run under the leases of ctx. These are the
// leases of the innermost 8 calls of locker.Run around the caller. The token is nil when ctx has no
// lease that may be delegated further. Do not show or store the token.
//
// The error means that a lease is lost, or that the server cannot be reached. In both cases, do not
// make the call. Without its delegation, the call would wait for its own caller.
func (s *Sender) Token(ctx context.Context) ([]byte, error) {
	leases := locker.LeasesFromContext(ctx)
	if len(leases) == 0 {
		return nil, nil
	}
	token := []byte{version}
	seen := make(map[string]bool)
	for _, lease := range leases {
		if seen[lease.Key()] || len(seen) == maxEntries {
			continue
		}
		seen[lease.Key()] = true
		e, err := s.entry(ctx, lease)
		switch {
		case errors.Is(err, locker.ErrUnsupported): // leases that cannot be delegated are left out
			continue
		case err != nil:
			return nil, err
		}
		token = e.appendTo(token)
	}
	if len(token) == 1 {
		return nil, nil
	}
	return token, nil
}

// entry delegates lease, and returns the delegation.
func (s *Sender) entry(ctx context.Context, lease *locker.Lease) (entry, error) {
	e := entry{kind: bySecret, hint: hintOf(lease.Key())}
	if len(s.keys) == 0 {
		_, _ = rand.Read(e.secret[:]) // never fails
		_, err := lease.Delegate(ctx, sha256.Sum256(e.secret[:]), s.timeout, s.depth-1)
		return e, err
	}
	pass, err := lease.Delegate(ctx, [sha256.Size]byte{}, s.timeout, s.depth-1)
	if err != nil {
		return e, err
	}
	e.kind, e.fence, e.hold, e.depth = bySignature, pass.Fence, pass.Hold, uint8(pass.Depth)
	e.ends = time.UnixMilli(time.Now().Add(s.timeout).UnixMilli())
	e.mac = e.sign(s.keys[0], lease.Key(), s.audience)
	return e, nil
}
