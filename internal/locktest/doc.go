// Package locktest has helpers for the tests of several packages. The helpers check leases and the
// kinds of errors, make acquires in the background, and break connections.
package locktest
