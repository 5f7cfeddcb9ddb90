package recipes

import (
	"context"
	"database/sql"
	"io/fs"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/latchkit/latchkit/locker"
)

// Migrate brings a database up to date. All pods call Migrate when they start. One pod
// migrates, and the other pods find that the migration is done.
func Migrate(ctx context.Context, l locker.Locker, db *sql.DB, dialect goose.Dialect, migrations fs.FS, opts ...goose.ProviderOption) error {
	opts = append(opts, goose.WithSessionLocker(&migrationLock{l: l}))
	p, err := goose.NewProvider(dialect, db, migrations, opts...)
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// migrationLock implements goose's SessionLocker. One lease field is enough, because a goose
// Provider always unlocks before it locks again.
type migrationLock struct {
	l     locker.Locker
	lease *locker.Lease
}

var _ lock.SessionLocker = (*migrationLock)(nil)

// SessionLock waits until no other pod migrates.
func (m *migrationLock) SessionLock(ctx context.Context, _ *sql.Conn) (err error) {
	m.lease, err = m.l.Acquire(ctx, locker.Rule{Key: "migrations"})
	return err
}

// SessionUnlock fails with ErrLost if the lock was lost while goose migrated.
func (m *migrationLock) SessionUnlock(ctx context.Context, _ *sql.Conn) error {
	return m.lease.Release(ctx)
}
