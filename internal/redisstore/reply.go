package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// KeptToken stands in the token's place while Rule.AtLeast keeps a released key.
const KeptToken = "kept"

// SharedToken stands in the token's place while readers hold the key.
const SharedToken = "shared"

// tokenBytes is the length of rand.Text, which makes the tokens.
const tokenBytes = 26

// LeaseText is what lies in L: token:fence:block[:metadata], where token may be shared, or kept:fence.
type LeaseText struct {
	Token    string
	Fence    uint64
	Block    int
	Metadata string
}

// ParseLease reads L. Whatever has another form was put there by another library or program.
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
	if err != nil || len(token) != tokenBytes && token != SharedToken {
		return LeaseText{}, false
	}
	return LeaseText{token, fence, block, metadata}, true
}

func holderOf(text string, left time.Duration) store.Holder {
	h, ours := ParseLease(text)
	return store.Holder{Fence: h.Fence, Left: left, Metadata: h.Metadata, Foreign: !ours, Kept: h.Token == KeptToken}
}

// Millis rounds up, so that the server never keeps a lease for less than this side counts on.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Reply is a script's answer in words with a space between; rest is what was not read yet. What is not there reads as
// zero: the callers check the first word.
type Reply struct{ Rest string }

// Word reads the next word.
func (r *Reply) Word() string {
	word, rest, _ := strings.Cut(r.Rest, " ")
	r.Rest = rest
	return word
}

// counted reads a part that has its length in bytes before it.
func (r *Reply) counted() (part string, ok bool) {
	n := r.Integer()
	if n < 0 || n > int64(len(r.Rest)) {
		return "", false
	}
	part, r.Rest = r.Rest[:n], r.Rest[n:]
	return part, true
}

// Integer reads a number; what is none reads as 0.
func (r *Reply) Integer() int64 {
	n, err := strconv.ParseInt(r.Word(), 10, 64)
	if err != nil {
		return 0 // not the largest, which it is when the number is larger
	}
	return n
}

// Time reads a time in µs.
func (r *Reply) Time() time.Time { return time.UnixMicro(r.Integer()) }

// Duration reads a PTTL, which is negative for a key without end, and noKey for a key that is not there.
func (r *Reply) Duration() time.Duration {
	return time.Duration(r.Integer()) * time.Millisecond
}

const noKey = -2 * time.Millisecond

// Unreadable is the error for a reply of another form than the script named by what gives.
func Unreadable(what string) error {
	return fmt.Errorf("the server's answer to %s cannot be read; is something between it and the client?", what)
}
