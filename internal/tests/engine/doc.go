// Package engine tests that faults of one call delay no other call: the Engine over a real server,
// with faults.
package engine
