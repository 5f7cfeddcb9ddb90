// Package locktest has helpers for the tests of several packages: for leases that must be granted,
// errors that must be of a kind, acquires in the background, and connections that break.
package locktest
