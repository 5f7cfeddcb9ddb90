// Package attack tests the adapters with hostile and broken clients over real connections: clients
// that send half a body, do not read the response, or disconnect at any moment.
package attack
