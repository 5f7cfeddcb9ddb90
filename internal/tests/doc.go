// Package tests has the tests that need modules which the library does not need. These modules are
// for property testing, for checks of linearizability, for the detection of goroutine leaks, and
// for telemetry. The tests are a separate module, so that users of latchkit do not get these
// modules.
package tests
