package storetest

import (
	"github.com/latchkit/latchkit/internal/store"
)

// Capabilities lists what a Store can do. The subject of each comment below is the Store.
type Capabilities struct {
	Fence     bool // mints fences
	Tombstone bool // refuses a late acquire after an undo
	OnceFor   bool // keeps done marks
	KeepFor   bool // keeps a released key locked for the time of Rule.KeepFor
	Revoke    bool // revokes leases; needs Inspect
	Metadata  bool // shows the holder's metadata to a refused caller
	Left      bool // shows a refused caller the time left, and whether another library holds the key
	Raise     bool // raises the fence counter
	Queue     bool // keeps a queue on the server
	Readers   bool // says Readers: claims with Mode Shared share a key
	Notify    bool // has a Notifier: it notifies the waiters in the queue when they are granted the key
	Permits   bool // says Permits: claims with a Limit share a key
}

// All is what a Store on Redis with scripts can do, without readers.
var All = Capabilities{
	Fence: true, Tombstone: true, OnceFor: true, KeepFor: true, Revoke: true, Metadata: true, Left: true, Raise: true, Queue: true, Notify: true,
}

// Each function below stands for a need of some laws, and reports whether a Harness meets this
// need.
func mintsFences(h Harness) bool        { return h.Can.Fence }
func refusesLate(h Harness) bool        { return h.Can.Tombstone }
func atLeast(h Harness) bool            { return h.Can.KeepFor }
func marksDone(h Harness) bool          { return h.Can.OnceFor }
func breaks(h Harness) bool             { return h.Can.Revoke && h.Can.Fence }
func metadata(h Harness) bool           { return h.Can.Metadata }
func showsLeft(h Harness) bool          { return h.Can.Left }
func raises(h Harness) bool             { return h.Can.Raise }
func foreign(h Harness) bool            { return h.Occupy != nil }
func losesReplies(h Harness) bool       { return h.LoseReply != nil }
func queues(h Harness) bool             { return h.Can.Queue }
func notifies(h Harness) bool           { return h.Can.Queue && h.Can.Notify }
func permits(h Harness) bool            { return h.Can.Queue && h.Can.Permits }
func readers(h Harness) bool            { return h.Can.Readers }
func hasProcesses(h Harness) bool       { return h.Another != nil }
func lists(h Harness) bool              { return store.CapabilitiesOf(h.Store).Keys != nil }
func shows(h Harness) bool              { return store.CapabilitiesOf(h.Store).Queue != nil }
func spoils(h Harness) bool             { return h.Spoil != nil }
func kills(h Harness) bool              { return h.Another != nil && h.Kill != nil }
func losesSubscriptions(h Harness) bool { return h.Deafen != nil }
func counts(h Harness) bool             { return h.Queued != nil }

// allOf combines several needs into one: a Harness must meet each of them.
func allOf(needs ...func(Harness) bool) func(Harness) bool {
	return func(h Harness) bool {
		for _, need := range needs {
			if !need(h) {
				return false
			}
		}
		return true
	}
}
