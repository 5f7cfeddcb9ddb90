// Package quorum is the Store of locks on several independent servers. It is Redlock with fences.
// With each vote, a node proves that it remembers its leases.
package quorum
