package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// KeptToken stands in place of the token while Rule.KeepFor keeps a released key.
const KeptToken = "kept"

// SharedToken stands in place of the token while readers hold the key.
const SharedToken = "shared"

// PermitsToken stands in place of the token while permits of a semaphore are held.
const PermitsToken = "permits"

// tokenBytes is the length of rand.Text, which makes the tokens.
const tokenBytes = 26

// LeaseText is the value of L: token:fence:block[:metadata], where token may also be the word
// "shared" or "permits". The value of a kept key is kept:fence.
type LeaseText struct {
	Token    string
	Fence    uint64
	Block    int
	Metadata string
}

// ParseLease parses text, the value of L. It returns false for a value of another form, which
// belongs to another library or program.
func ParseLease(text string) (LeaseText, bool) {
	token, rest, _ := strings.Cut(text, ":")
	fenceText, rest, _ := strings.Cut(rest, ":")
	fence, err := strconv.ParseUint(fenceText, 10, 64)
	if err != nil {
		return LeaseText{}, false
	}
	if token == KeptToken {
		return LeaseText{Token: KeptToken, Fence: fence}, true
	}
	blockText, metadata, _ := strings.Cut(rest, ":")
	block, err := strconv.Atoi(blockText)
	if err != nil || len(token) != tokenBytes && token != SharedToken && token != PermitsToken {
		return LeaseText{}, false
	}
	return LeaseText{token, fence, block, metadata}, true
}

func holderOf(text string, remaining time.Duration) store.Holder {
	h, ours := ParseLease(text)
	return store.Holder{Fence: h.Fence, Left: remaining, Metadata: h.Metadata, Foreign: !ours, Kept: h.Token == KeptToken}
}

// Millis returns d in milliseconds, rounded up. So the server keeps a lease at least as long as
// its holder believes.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Reply is a script's answer: words with spaces between them. Rest is the part that was not read
// yet. A missing word reads as zero, so the callers check the first word.
type Reply struct{ Rest string }

// Word reads the next word of the reply, and returns it.
func (r *Reply) Word() string {
	word, rest, _ := strings.Cut(r.Rest, " ")
	r.Rest = rest
	return word
}

// countedPart reads the next part, in front of which the reply has the length of the part in bytes.
func (r *Reply) countedPart() (part string, ok bool) {
	n := r.Integer()
	if n < 0 || n > int64(len(r.Rest)) {
		return "", false
	}
	part, r.Rest = r.Rest[:n], r.Rest[n:]
	return part, true
}

// Integer reads the next word, and returns its number, or 0 if the word is not a number.
func (r *Reply) Integer() int64 {
	n, err := strconv.ParseInt(r.Word(), 10, 64)
	if err != nil {
		return 0 // for a number that is too large, ParseInt would return the largest int64
	}
	return n
}

// Time reads the next word, a time in µs, and returns this time.
func (r *Reply) Time() time.Time { return time.UnixMicro(r.Integer()) }

// Duration reads the next word, a PTTL, and returns this duration. The result is negative for a key
// without an expiry, and noKey for a missing key.
func (r *Reply) Duration() time.Duration {
	return time.Duration(r.Integer()) * time.Millisecond
}

const noKey = -2 * time.Millisecond

// Unreadable returns the error for an answer of the wrong form. The parameter script is the name of
// the script.
func Unreadable(script string) error {
	return fmt.Errorf("the server's answer to %s cannot be read; check for a proxy between server and client", script)
}

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
