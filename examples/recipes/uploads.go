package recipes

import (
	"context"
	"sync"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/latchkit/latchkit/locker"
)

// UploadLocker is tusd's lock for uploads that reach several pods. When a client resumes an upload
// on another pod, UploadLocker asks the pod that still holds the upload to release it.
type UploadLocker struct {
	l locker.Locker

	mu      sync.Mutex
	waiting map[string]int // the number of callers of this process that wait, by upload
}

var _ handler.Locker = (*UploadLocker)(nil)

// NewUploadLocker returns a Locker for a tusd handler: NewUploadLocker(l).UseIn(composer).
func NewUploadLocker(l locker.Locker) *UploadLocker {
	return &UploadLocker{l: l, waiting: make(map[string]int)}
}

// UseIn makes a composer use this Locker.
func (u *UploadLocker) UseIn(c *handler.StoreComposer) { c.UseLocker(u) }

// NewLock returns the lock of an upload.
func (u *UploadLocker) NewLock(id string) (handler.Lock, error) {
	return &uploadLock{uploads: u, id: id}, nil
}

// wait counts the waiting callers of an upload. n is 1 when a caller begins to wait, and -1 when
// the wait ends.
func (u *UploadLocker) wait(id string, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting[id] += n; u.waiting[id] == 0 {
		delete(u.waiting, id)
	}
}

type uploadLock struct {
	uploads *UploadLocker
	id      string
	lease   *locker.Lease
	ended   chan struct{} // closed by Unlock
}

// Lock asks the holder to release the upload, and waits for the release until ctx ends.
func (k *uploadLock) Lock(ctx context.Context, requestUnlock func()) (err error) {
	// The lease must not use ctx, because tusd changes ctx while it writes the upload.
	waits, stop := context.WithCancel(context.Background())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	k.uploads.wait(k.id, 1)
	k.lease, err = k.uploads.l.Acquire(waits, locker.Rule{Key: "upload:" + k.id})
	k.uploads.wait(k.id, -1)
	switch {
	case err != nil && ctx.Err() != nil:
		return handler.ErrLockTimeout
	case err != nil:
		return err
	}
	k.ended = make(chan struct{})
	go k.watch(requestUnlock)
	return nil
}

// watch asks tusd to unlock the upload when the lease is lost, or when another caller waits for
// the upload.
func (k *uploadLock) watch(requestUnlock func()) {
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-k.ended:
			return
		case <-k.lease.Context().Done():
			requestUnlock()
			return
		case <-look.C:
		}
		if k.wanted() {
			requestUnlock()
			return
		}
	}
}

// wanted reports whether a caller of this pod or of another pod waits for the upload.
func (k *uploadLock) wanted() bool {
	k.uploads.mu.Lock()
	here := k.uploads.waiting[k.id]
	k.uploads.mu.Unlock()
	if here > 0 {
		return true
	}
	info, err := k.lease.Inspect(k.lease.Context())
	return err == nil && info.Waiters > 0
}

// Unlock releases the upload. It fails with ErrLost if the lock was lost meanwhile.
func (k *uploadLock) Unlock() error {
	close(k.ended)
	return k.lease.Release(context.Background())
}
