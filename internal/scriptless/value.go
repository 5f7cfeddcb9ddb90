package scriptless

import (
	"net/url"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// valuePrefix is the first word of each lease's value, which has the form
// scriptless|OWNER|METADATA. METADATA is escaped, so no value contains a colon, and no Locker with
// scripts takes the value for a lease of its own. The value has no owner while KeepFor keeps a
// released key.
const valuePrefix = "scriptless|"

func valueOf(owner, metadata string) string {
	return valuePrefix + owner + "|" + url.QueryEscape(metadata)
}

// holder is the holder of a key.
type holder struct {
	store.Holder
	owner string // "" for a foreign holder, and for a key that is kept without an owner
}

// parse returns the holder that value, the value of a key, describes. The parameter remaining is
// negative for a key without an expiry.
func parse(value string, remaining time.Duration) holder {
	h := holder{Holder: store.Holder{Left: remaining, Foreign: true}}
	rest, ok := strings.CutPrefix(value, valuePrefix)
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
