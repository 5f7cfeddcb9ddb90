// Package quorum is the Store of locks on several independent servers: Redlock with fences, with
// nodes that show with each vote that they remember their leases.
package quorum
