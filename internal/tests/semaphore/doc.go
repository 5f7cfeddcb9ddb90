// Package semaphore has a model of the semaphore's server: one key on one Redis node, in virtual
// time. Its steps do what the scripts sem_*.lua do.
//
// Random histories are played on the model, on the scripts on a real server, and on lockertest's
// Memory: processes acquire, renew, release, give up and die, time passes, keys are evicted, and
// other programs lock the key. All replies and all grants by message must be equal. Every rule of
// the protocol can be left out of the model ([Rule]). Then the histories must find a difference.
//
//	go test ./semaphore             the ordinary run: seconds
//	go test ./semaphore -run 'InMemory|OnRedis' -rapid.checks 20000
//
// What the engine makes of the answers is tested under faults in package locker.
package semaphore
