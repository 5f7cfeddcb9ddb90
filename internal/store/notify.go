package store

import (
	"context"
	"fmt"
	"time"
)

// A Notifier notifies the waiters of this process when they are granted a key, or when they should
// call Acquire again: see [Capabilities]. Events may be lost, late or repeated. In doubt, the
// Engine calls Acquire again. Without an inbox, waiters poll.
type Notifier interface {
	// Listen makes the Store call notify with every event until stop is called. The Store calls
	// notify from one goroutine at a time. The function notify does not block. The function stop
	// returns only when the last call of notify has returned. The Engine calls Listen once, before
	// all other methods.
	Listen(notify func(Event)) (stop func())
	// Inbox returns the address at which this process receives events about key, or "" while there
	// is no subscription. Inbox does not block.
	Inbox(key string) string
	// Open subscribes for key, and returns the inbox when the server has confirmed the
	// subscription.
	Open(ctx context.Context, key string) (string, error)
	// Reset subscribes an inbox again, on another connection, because the server has answered
	// NotListening. Afterwards the Store calls notify with EventReopened. If subscribing again does
	// not help, the Store should do so less and less often, and then let Inbox return "" and Open
	// fail for a while. The waiters then queue without an inbox, and poll.
	Reset(inbox string)
}

// Event is a message from a Notifier.
type Event struct {
	Kind       EventKind
	Key        string // the key with the Locker's prefix; "" with EventReopened
	Inbox      string // EventReopened: the inbox that was subscribed again; "": all
	Owner      string // EventGranted, EventDone, EventHead, EventWriter: the token
	Fence      uint64 // EventGranted: the first fence of the hold
	FenceCount int    // EventGranted: how many fences are reserved
	// EventGranted: how long the server keeps the lease. EventHead: the key is free after this
	// time at the latest.
	HandoffTTL time.Duration
	At         time.Time // EventGranted: the server's clock at the grant
	Writer     bool      // EventGranted to a reader: a writer waits already
	// EventGranted: the traceparent (see Sign) of the lease whose release freed the key; "" when it
	// is unknown.
	ReleasedBy string
}

// Format prints the event without its Owner, which is a secret.
func (e Event) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "event %d about %s", e.Kind, e.Key)
}

// EventKind is the kind of an Event: it shows what happened.
type EventKind uint8

const (
	EventGranted  EventKind = iota + 1 // Owner left the queue and holds the key
	EventDone                          // the work that Owner waited for is done; Owner left the queue
	EventHead                          // Owner is now the head of the queue, and should ask again after HandoffTTL
	EventFree                          // the key may be free: its waiters should ask again
	EventReopened                      // events may have been lost: the waiters at Inbox should ask again
	EventWriter                        // Owner is a reader and a writer waits: no more callers may share the lease
)
