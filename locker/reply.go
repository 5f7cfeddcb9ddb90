package locker

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// kept stands in the token's place while Rule.AtLeast keeps a released key.
const kept = "kept"

// tokenBytes is the length of rand.Text, which makes the tokens.
const tokenBytes = 26

// leaseText is what lies in L: token:fence:block[:metadata], or kept:fence.
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
	if err != nil || len(token) != tokenBytes {
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

// reply reads a script's answer. What is not there reads as zero: the callers check the first word or the length.
type reply struct{ value any }

func (r reply) at(i int) any {
	if list, ok := r.value.([]any); ok && i < len(list) {
		return list[i]
	}
	return nil
}

func (r reply) len() int {
	list, _ := r.value.([]any)
	return len(list)
}

func (r reply) text(i int) string {
	s, _ := r.at(i).(string)
	return s
}

func (r reply) integer(i int) int64 {
	n, _ := r.at(i).(int64)
	return n
}

func (r reply) time(i int) time.Time { return time.UnixMicro(r.integer(i)) }

// duration reads a PTTL: -1 is a key without end.
func (r reply) duration(i int) time.Duration {
	return time.Duration(r.integer(i)) * time.Millisecond
}

func (r reply) odd(what string) error {
	return fmt.Errorf("the server's answer to %s cannot be read (%d parts); is something between it and the client?", what, r.len())
}
