// Package attack sends the adapters what a hostile or broken client could send, over real
// connections: half a body, a response that nobody reads, a departure at any moment.
package attack
