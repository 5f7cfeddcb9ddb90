// Package locktest has what the tests of several packages need around a Locker: leases that must be
// granted, errors that must be of a kind, acquires in the background, connections that break.
package locktest
