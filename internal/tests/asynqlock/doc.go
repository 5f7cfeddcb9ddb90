// Package asynqlock has tests of package asynqlock that need several processes or package sqllock.
package asynqlock
