// Package engine tests the Engine over a real server that has faults: a fault of one call must not
// delay another call.
package engine
