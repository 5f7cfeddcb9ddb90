package redisstore

import (
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// ScriptTexts are the scripts as servers are sent them, by name.
var ScriptTexts = map[string]string{
	"acquire": acquireScript.Text, "renew": renewScript.Text, "confirm": confirmScript.Text, "release": releaseScript.Text,
	"acquire_each": acquiresTogether.Script.Text(), "release_each": releasesTogether.Script.Text(),
	"acquire_all": acquireAllScript.Text,
	"break":       breakScript.Text, "inspect": inspectScript.Text, "raise_fence": raiseFenceScript.Text,

	"rw_acquire": rwAcquireScript.Text, "rw_renew": rwRenewScript.Text, "rw_release": rwReleaseScript.Text,
	"rw_break": rwBreakScript.Text, "rw_inspect": rwInspectScript.Text, "rw_downgrade": rwDowngradeScript.Text,
	"rw_part": rwPartScript.Text,

	"sem_acquire": semAcquireScript.Text, "sem_renew": semRenewScript.Text, "sem_release": semReleaseScript.Text,
	"sem_break": semBreakScript.Text, "sem_inspect": semInspectScript.Text, "sem_part": semPartScript.Text, "sem_use": semUseScript.Text,

	"delegate": delegateScript.Text, "join": joinScript.Text, "leave": leaveScript.Text,
}

// Silence takes the subscription of a Store of New or NewReadWrite away, as if its process had
// ended, and returns its inbox.
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

// DelayLeaving makes a Store on a cluster unsubscribe from channels that were unused for that long.
// Call it before the first wait.
func DelayLeaving(s store.Store, d time.Duration) { s.(listeningCluster).leaves = d }
