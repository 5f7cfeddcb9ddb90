// Package tests has the tests that need modules which the library does not need: for property
// testing, linearizability checking and goroutine-leak detection, and an SDK. It is a separate
// module, so that users of latchkit do not get these modules.
package tests
