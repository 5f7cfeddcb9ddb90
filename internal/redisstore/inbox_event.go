package redisstore

import (
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// ParseEvent reads a message. The key comes last, because it may contain spaces:
//
//	granted server-µs fence block hand-ms token[|traceparent] L
//	admitted server-µs fence writers hand-ms token[|traceparent] L
//	writer token L
//	head hand-ms token L
//	done token L
//	free L
//
// The traceparent belongs to the lease whose release freed the key. A text of another form was
// sent by another program.
func ParseEvent(text string) (e store.Event, ok bool) {
	r := Reply{Rest: text}
	switch r.Word() {
	case "granted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: int(r.Integer()), HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.FenceCount > 0 && e.HandoffTTL > 0
	case "admitted":
		at, fence := r.Integer(), r.Integer()
		e = store.Event{Kind: store.EventGranted, At: time.UnixMicro(at), Fence: uint64(fence), FenceCount: 1, Writer: r.Integer() > 0, HandoffTTL: r.Duration()}
		ok = at > 0 && fence > 0 && e.HandoffTTL > 0
	case "writer":
		e, ok = store.Event{Kind: store.EventWriter}, true
	case "head":
		e = store.Event{Kind: store.EventHead, HandoffTTL: r.Duration()}
		ok = e.HandoffTTL > 0
	case "done":
		e, ok = store.Event{Kind: store.EventDone}, true
	case "free":
		return store.Event{Kind: store.EventFree, Key: r.Rest}, r.Rest != ""
	}
	e.Owner, e.ReleasedBy, _ = strings.Cut(r.Word(), "|")
	e.Key = r.Rest
	return e, ok && e.Owner != "" && e.Key != ""
}
