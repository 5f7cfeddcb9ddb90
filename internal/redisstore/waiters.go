package redisstore

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Entry is one waiter in the form of its entry in the queue.
type Entry struct {
	Token     string
	Inbox     string // "-": the waiter has no inbox
	Ticket    int64  // the server's clock in µs when the waiter came; negative after the key was handed to the waiter
	Listening bool
	Rest      string // the text after the inbox
}

// Queue runs waiters.lua, and returns the waiters in the key's queue.
func (s *Store) Queue(ctx context.Context, key string) ([]store.Waiter, error) {
	_, entries, err := s.Entries(ctx, key)
	if err != nil {
		return nil, err
	}
	var line Line
	for _, e := range entries {
		line.Add(e, waiterOf(e.Rest))
	}
	return line.Waiters, nil
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

// Line is a queue as Queue returns it. A Line has no secrets: numbers stand for the processes in
// place of their inboxes.
type Line struct {
	Waiters   []store.Waiter
	processes map[string]int
}

// Add puts a waiter at the end of the Line, which is a queue. The caller has already set the
// fields of w that differ between kinds of Stores.
func (l *Line) Add(e Entry, w store.Waiter) {
	ticket := e.Ticket
	w.Handed = ticket < 0
	// A ticket of 1 is no time: the waiter was put back to the head of the queue.
	if ticket = max(ticket, -ticket); ticket > 1 {
		w.Since = time.UnixMicro(ticket)
	}
	if e.Inbox != "-" && e.Inbox != "" {
		if l.processes == nil {
			l.processes = make(map[string]int)
		}
		if l.processes[e.Inbox] == 0 {
			l.processes[e.Inbox] = len(l.processes) + 1
		}
		w.Process, w.Gone = l.processes[e.Inbox], !e.Listening
	}
	l.Waiters = append(l.Waiters, w)
}

// Entries returns the time of the server's clock, and the entries of the key's queue, in order.
func (s *Store) Entries(ctx context.Context, key string) (at time.Time, all []Entry, err error) {
	text, err := s.run(ctx, waitersScript, []string{key, QueueKey(key)})
	if err != nil {
		return at, nil, err
	}
	r := Reply{text}
	if at = r.Time(); at.Equal(time.UnixMicro(0)) {
		return at, nil, Unreadable("waiters")
	}
	for r.Rest != "" {
		ticket, err := strconv.ParseFloat(r.Word(), 64)
		if err != nil || math.Abs(ticket) > 1<<53 {
			return at, nil, Unreadable("waiters")
		}
		listening := r.Word() != "0"
		text, ok := r.countedPart()
		if !ok || !strings.HasPrefix(r.Rest, " ") {
			return at, nil, Unreadable("waiters")
		}
		r.Rest = r.Rest[1:]
		e := Entry{Ticket: int64(ticket), Listening: listening}
		e.Token, text, _ = strings.Cut(text, "|")
		e.Inbox, e.Rest, _ = strings.Cut(text, "|")
		all = append(all, e)
	}
	return at, all, nil
}
