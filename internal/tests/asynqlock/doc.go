// Package asynqlock tests package asynqlock with several processes, and together with sqllock.
package asynqlock
