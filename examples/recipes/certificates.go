package recipes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/caddyserver/certmagic"

	"github.com/latchkit/latchkit/locker"
)

// CertificateStorage adds latchkit's lock to a storage of certmagic, such as
// certmagic.FileStorage on a shared disk. One pod obtains a certificate, and the other pods
// load it.
type CertificateStorage struct {
	certmagic.Storage
	l locker.Locker

	mu     sync.Mutex
	leases map[string]*locker.Lease
}

var _ interface {
	certmagic.Storage
	certmagic.TryLocker
} = (*CertificateStorage)(nil)

// NewCertificateStorage puts a lock around a storage.
func NewCertificateStorage(s certmagic.Storage, l locker.Locker) *CertificateStorage {
	return &CertificateStorage{Storage: s, l: l, leases: make(map[string]*locker.Lease)}
}

// Lock waits until the name is free. The lease is renewed until Unlock, so certmagic needs no
// LockLeaseRenewer.
func (s *CertificateStorage) Lock(ctx context.Context, name string) error {
	return s.lock(ctx, locker.Rule{Key: "certificate:" + name}, name)
}

// TryLock returns false while another caller has the name.
func (s *CertificateStorage) TryLock(ctx context.Context, name string) (bool, error) {
	err := s.lock(ctx, locker.Rule{Key: "certificate:" + name, Wait: locker.NoWait}, name)
	if errors.Is(err, locker.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

func (s *CertificateStorage) lock(ctx context.Context, rule locker.Rule, name string) error {
	lease, err := s.l.Acquire(ctx, rule)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[name] = lease
	return nil
}

// Unlock releases the name. It fails with ErrLost if the lock was lost meanwhile.
func (s *CertificateStorage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	lease := s.leases[name]
	delete(s.leases, name)
	s.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("unlock %s: it is not locked", name)
	}
	return lease.Release(ctx)
}
