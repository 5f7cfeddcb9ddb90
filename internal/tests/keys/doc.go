// Package keys compares the keys of each adapter with what its framework gives a handler. A client
// that can make the two differ chooses another lock than the lock of its work.
package keys
