// Package locktest has helpers for the tests of several packages. They check that leases are
// granted and errors are of a kind, make acquires in the background, and break connections.
package locktest
