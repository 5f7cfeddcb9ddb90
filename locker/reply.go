package locker

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// kept stands in the token's place while Rule.AtLeast keeps a released key.
const kept = "kept"

// shared stands in the token's place while readers hold the key.
const shared = "shared"

// tokenBytes is the length of rand.Text, which makes the tokens.
const tokenBytes = 26

// leaseText is what lies in L: token:fence:block[:metadata], where token may be shared, or kept:fence.
type leaseText struct {
	token    string
	fence    uint64
	block    int
	metadata string
}

// parseLease reads L. Whatever has another form was put there by another library or program.
func parseLease(text string) (leaseText, bool) {
	token, rest, _ := strings.Cut(text, ":")
	fenceText, rest, _ := strings.Cut(rest, ":")
	fence, err := strconv.ParseUint(fenceText, 10, 64)
	if err != nil {
		return leaseText{}, false
	}
	if token == kept {
		return leaseText{token: kept, fence: fence}, true
	}
	blockText, metadata, _ := strings.Cut(rest, ":")
	block, err := strconv.Atoi(blockText)
	if err != nil || len(token) != tokenBytes && token != shared {
		return leaseText{}, false
	}
	return leaseText{token, fence, block, metadata}, true
}

func holderOf(text string, left time.Duration) Holder {
	h, ours := parseLease(text)
	return Holder{Fence: h.fence, Left: left, Metadata: h.metadata, Foreign: !ours}
}

// millis rounds up, so that the server never keeps a lease for less than this side counts on.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// reply is a script's answer in words with a space between; rest is what was not read yet. What is not there reads as
// zero: the callers check the first word.
type reply struct{ rest string }

func (r *reply) word() string {
	word, rest, _ := strings.Cut(r.rest, " ")
	r.rest = rest
	return word
}

// counted reads a part that has its length in bytes before it.
func (r *reply) counted() (part string, ok bool) {
	n := r.integer()
	if n < 0 || n > int64(len(r.rest)) {
		return "", false
	}
	part, r.rest = r.rest[:n], r.rest[n:]
	return part, true
}

func (r *reply) integer() int64 {
	n, err := strconv.ParseInt(r.word(), 10, 64)
	if err != nil {
		return 0 // not the largest, which it is when the number is larger
	}
	return n
}

func (r *reply) time() time.Time { return time.UnixMicro(r.integer()) }

// duration reads a PTTL, which is negative for a key without end, and noKey for a key that is not there.
func (r *reply) duration() time.Duration {
	return time.Duration(r.integer()) * time.Millisecond
}

const noKey = -2 * time.Millisecond

func odd(what string) error {
	return fmt.Errorf("the server's answer to %s cannot be read; is something between it and the client?", what)
}
