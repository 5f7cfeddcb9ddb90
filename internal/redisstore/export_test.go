package redisstore

import (
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Silence ends the subscription of a Store. The Store sends
// nothing to its waiters or servers, as if its process had ended. Silence returns the names of the
// channels.
func Silence(s store.Store) (channels []string) {
	if inbox := s.(*Store).inbox; inbox != nil {
		return inbox.end()
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

// DelayLeaving sets the time after which a Store unsubscribes from an unused channel. Call it
// before the first wait.
func DelayLeaving(s store.Store, d time.Duration) {
	s.(*Store).inbox.unusedLimit = d
}

// Address returns the channel of the key's slot, even before its node has confirmed the
// subscription.
func (s *Subscriptions) Address(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel(s.sites.slot(key))
}

// RefusesText reports whether err may be the refusal of a script's text.
func RefusesText(err error) bool { return refusesText(err) }
