// Package tests holds the tests that need more than the library does: property
// testing, linearizability checking, goroutine-leak detection, an SDK. It is a
// module of its own so that none of these reaches a user of latchkit.
package tests
