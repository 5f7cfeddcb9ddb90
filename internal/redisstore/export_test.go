package redisstore

import (
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Silence ends the subscription of a Store that New or NewReadWrite has made. The Store sends
// nothing to its waiters or servers, as if its process had ended. Silence returns the names of the
// channels.
func Silence(s store.Store) (channels []string) {
	switch s := s.(type) {
	case listening:
		return s.end()
	case listeningReadWrite:
		return s.end()
	case listeningCluster:
		return s.end()
	case listeningReadWriteCluster:
		return s.end()
	case listeningSemaphore:
		return s.end()
	case listeningSemaphoreCluster:
		return s.end()
	}
	return nil
}

func (s *Subscriptions) end() (channels []string) {
	s.mu.Lock()
	for _, sh := range s.slots {
		channels = append(channels, sh.name)
	}
	s.mu.Unlock()
	s.stop()
	return channels
}

// DelayLeaving sets the time after which a Store on a cluster unsubscribes from an unused channel.
// Call it before the first wait.
func DelayLeaving(s store.Store, d time.Duration) { s.(listeningCluster).unusedLimit = d }
