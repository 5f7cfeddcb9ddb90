package scriptless

import (
	"net/url"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// first is the beginning of each lease's value: scriptless|OWNER|METADATA. METADATA is escaped, so
// no value contains a colon, and no Locker with scripts takes the value for a lease of its own. A
// lease without an owner is a kept key.
const first = "scriptless|"

func valueOf(owner, metadata string) string { return first + owner + "|" + url.QueryEscape(metadata) }

// holder is the holder of a key.
type holder struct {
	store.Holder
	owner string // "" for a foreign holder, and for a key that is kept
}

// parse parses the value of a key. The parameter left is negative for a key without an expiry.
func parse(value string, left time.Duration) holder {
	h := holder{Holder: store.Holder{Left: left, Foreign: true}}
	rest, ok := strings.CutPrefix(value, first)
	if !ok {
		return h
	}
	owner, metadata, ok := strings.Cut(rest, "|")
	if !ok {
		return h
	}
	h.owner, h.Foreign, h.Kept = owner, false, owner == ""
	h.Metadata, _ = url.QueryUnescape(metadata)
	return h
}
