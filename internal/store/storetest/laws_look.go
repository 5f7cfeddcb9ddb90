package storetest

import (
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// lookLaws concern what an operator sees: the keys, and the queue of a key.
var lookLaws = []law{
	{name: "a held key is listed, and a free key is not", needs: lists, check: func(b *bench) {
		c, _ := b.newHolder()
		b.checkListed(b.key, true)
		b.checkListed(b.key+"*", true)
		b.checkListed(b.key+"?", false)
		b.free(c)
		b.checkListed(b.key, false)
	}},
	{name: "a key that is kept is listed", needs: allOf(lists, atLeast), check: func(b *bench) {
		c, _ := b.newHolder()
		c.KeepFor = time.Minute
		b.checkState(b.release(c), store.Released, "release that keeps the key")
		b.checkListed(b.key, true)
	}},
	{name: "a key that readers share is listed", needs: allOf(lists, readers), check: func(b *bench) {
		c := b.claim(owner())
		c.Mode = locker.Shared
		b.acquireSoon(c, "acquire by a reader")
		b.checkListed(b.key, true)
	}},
	{name: "permits are listed, and a waiter is shown with its weight and its limit", needs: allOf(lists, shows, permits), check: func(b *bench) {
		c, _ := b.permit(3, 4)
		b.checkListed(b.key, true)
		w := b.units(2, 4)
		w.Queue, w.HandoffTTL = true, hand
		b.queue(w)
		if line := b.line(); len(line) != 1 || line[0].Weight != 2 || line[0].Limit != 4 {
			b.Fatalf("the queue of a semaphore: %+v", line)
		}
		b.free(c)
	}},
	{name: "a key of another library is listed while a waiter waits for it", needs: allOf(lists, queues, foreign), check: func(b *bench) {
		b.Occupy(b.TB, b.key, time.Minute)
		b.checkListed(b.key, false)
		w := b.newWaiter("")
		b.checkListed(b.key, true)
		b.checkState(b.release(w), store.NotOurs, "release by the waiter")
		b.checkListed(b.key, false)
	}},
	{name: "data that is no lock is not listed, and stays", needs: allOf(lists, spoils), check: func(b *bench) {
		intact := b.Spoil(b.TB, b.key)
		b.checkListed(b.key, false)
		if !intact() {
			b.Fatal("the data is gone")
		}
	}},
	{name: "the queue shows the waiters in order, and no holder", needs: allOf(shows, queues), check: func(b *bench) {
		holder, _ := b.newHolder()
		if line := b.line(); len(line) != 0 {
			b.Fatalf("%d waiters in an empty queue", len(line))
		}
		var names []string
		for _, name := range []string{"first", "second|with|bars", ""} {
			w := b.waiter("")
			if b.Can.Metadata {
				w.Metadata = name
			}
			b.checkState(b.queue(w), store.Busy, "acquire of a held key")
			names = append(names, w.Metadata)
		}
		line := b.line()
		for i, w := range line {
			if i > 0 && w.Since.Before(line[i-1].Since) {
				b.Errorf("waiter %d came at %v, before the waiter ahead of it, which came at %v", i, w.Since, line[i-1].Since)
			}
			if w.Handed || w.Gone || w.Mode != locker.Exclusive {
				b.Errorf("waiter %d: %+v", i, w)
			}
		}
		shown := slices.Collect(func(yield func(string) bool) {
			for _, w := range line {
				if !yield(w.Metadata) {
					return
				}
			}
		})
		if !slices.Equal(shown, names) {
			b.Fatalf("the queue is %q, want %q", shown, names)
		}
		b.free(holder)
		line = b.line()
		// The entry of a new holder stays in the queue until the holder confirms the hand-off.
		// The new holder of a permit has no entry.
		if len(line) == 3 && line[0].Handed {
			line = line[1:]
		}
		if len(line) != 2 || line[0].Handed {
			b.Fatalf("the queue after a hand-off: %+v", line)
		}
	}},
	{name: "the queue shows which waiters belong to one process, and that a process is gone", needs: allOf(shows, notifies, kills), check: func(b *bench) {
		holder, _ := b.newHolder()
		here, other := b.listen(b.Store).inbox, b.Another(b.TB)
		b.newWaiter(here)
		b.newWaiter(b.listen(other).inbox)
		b.newWaiter(here)
		line := b.line()
		if len(line) != 3 || line[0].Process == 0 || line[0].Process != line[2].Process || line[0].Process == line[1].Process {
			b.Fatalf("processes: %+v", line)
		}
		b.Kill(b.TB, other)
		b.eventually(10*time.Second, "the process is shown as gone", func() bool { return b.line()[1].Gone })
		if line := b.line(); line[0].Gone || line[2].Gone {
			b.Fatalf("processes that live are shown as gone: %+v", line)
		}
		b.free(holder)
	}},
}

// checkListed fails the law unless want reports whether the keys that match pattern include the
// law's key. Where the nodes of a Store have no queue, a node may still show the key for a moment
// after its release.
func (b *bench) checkListed(pattern string, want bool) {
	b.Helper()
	var keys []string
	holds := func() bool {
		var err error
		if keys, err = store.CapabilitiesOf(b.Store).Keys(b.Context(), pattern); err != nil {
			b.Fatal(err)
		}
		return slices.Contains(keys, b.key) == want
	}
	if !b.Can.Queue {
		b.eventually(10*time.Second, "a released key leaves the list", holds)
	} else if !holds() {
		b.Fatalf("keys that match %s: %q; listed: %t, want %t", pattern, keys, !want, want)
	}
}

// line returns the queue of the law's key.
func (b *bench) line() []store.Waiter {
	b.Helper()
	all, err := store.CapabilitiesOf(b.Store).Queue(b.Context(), b.key)
	if err != nil {
		b.Fatal(err)
	}
	return all
}
