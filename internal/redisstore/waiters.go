package redisstore

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Queue runs waiters.lua, and returns the waiters in the key's queue. The result has no secrets:
// numbers stand for the processes in place of their inboxes.
func (s *Store) Queue(ctx context.Context, key string) ([]store.Waiter, error) {
	text, err := s.run(ctx, waitersScript, []string{key, QueueKey(key)})
	if err != nil {
		return nil, err
	}
	r := Reply{text}
	if r.Time().Equal(time.UnixMicro(0)) {
		return nil, Unreadable("waiters")
	}
	var all []store.Waiter
	known := make(processes)
	for r.Rest != "" {
		ticket, err := strconv.ParseFloat(r.Word(), 64)
		if err != nil || math.Abs(ticket) > 1<<53 {
			return nil, Unreadable("waiters")
		}
		listening := r.Word() != "0"
		entry, ok := r.countedPart()
		if !ok || !strings.HasPrefix(r.Rest, " ") {
			return nil, Unreadable("waiters")
		}
		r.Rest = r.Rest[1:]
		_, entry, _ = strings.Cut(entry, "|") // the token
		inbox, rest, _ := strings.Cut(entry, "|")
		w := waiterOf(rest)
		w.Handed = ticket < 0
		// A ticket of 1 is no time: the waiter was put back to the head of the queue.
		if at := math.Abs(ticket); at > 1 {
			w.Since = time.UnixMicro(int64(at))
		}
		w.Process = known.number(inbox)
		w.Gone = w.Process > 0 && !listening
		all = append(all, w)
	}
	return all, nil
}

// processes has a number for each inbox.
type processes map[string]int

// number returns the number of the process with the given inbox, 0 for a waiter without an inbox.
func (ps processes) number(inbox string) int {
	if inbox == "-" || inbox == "" {
		return 0
	}
	if ps[inbox] == 0 {
		ps[inbox] = len(ps) + 1
	}
	return ps[inbox]
}

// waiterOf returns the waiter that rest describes: hand-ms|mode|block|once|metadata. For a permit
// the mode is weight/limit.
func waiterOf(rest string) (w store.Waiter) {
	fields := strings.SplitN(rest, "|", 5)
	if len(fields) < 5 {
		return w
	}
	if weight, limit, ok := strings.Cut(fields[1], "/"); ok {
		w.Weight, w.Limit = number(weight), number(limit)
	} else if fields[1] == "1" {
		w.Mode = store.Shared
	}
	w.Metadata = fields[4]
	return w
}

// number returns the small number in text, or 0 if text is not a number.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}
