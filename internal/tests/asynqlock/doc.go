// Package asynqlock has the tests of package asynqlock over several processes, and with package
// sqllock.
package asynqlock
