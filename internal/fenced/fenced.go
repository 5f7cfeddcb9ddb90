// Package fenced has the errors of data that checks fences. Package sqllock exports them, the
// adapters answer them, and package lockertest returns them for a database.
package fenced

import "errors"

var (
	// ErrStale says that a newer holder has claimed the resource.
	ErrStale = errors.New("a newer holder has claimed the resource")
	// ErrTooLate says that too little of the lease was left to commit.
	ErrTooLate = errors.New("too little of the lease is left to commit")
	// ErrIdle says that the database server has ended an idle transaction.
	ErrIdle = errors.New("sqllock: the server has ended the transaction, which was idle for too long; " +
		"give a longer WithIdleLimit, or do slow work before the transaction")
)

// Keyed is an error whose text names the key, and which wraps its reason: a *sqllock.Error.
type Keyed interface {
	error
	ErrorType() string
	Unwrap() error
}
