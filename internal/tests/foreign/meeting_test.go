package foreign

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// A meeting has peers of one library, and Lockers of latchkit on the same servers.
type meeting struct {
	*testing.T
	library library
	servers []*redistest.Server
	redis   []*redis.Client // one client for each server
	peer    *peer
	victim  *peer // the peer that the test kills
	kinds   []string
	lockers map[string]*locker.Engine
}

func meet(t *testing.T, l library) *meeting {
	t.Helper()
	m := &meeting{T: t, library: l, kinds: kinds, lockers: make(map[string]*locker.Engine)}
	if l.servers == 1 {
		m.servers = []*redistest.Server{redistest.Shared(t)}
	} else {
		for range l.servers {
			m.servers = append(m.servers, redistest.Start(t))
		}
		enroll(t, m.servers)
		m.kinds = []string{"NewRedlock"}
	}
	m.redis = clientsOf(t, m.servers)
	m.peer, m.victim = l.start(t, m.ports()), l.start(t, m.ports())
	for _, kind := range m.kinds {
		m.lockers[kind] = openLocker(t, kind, m.servers)
	}
	return m
}

func (m *meeting) ports() (ports []int) {
	for _, s := range m.servers {
		ports = append(ports, s.Port())
	}
	return ports
}

// names returns the two names of a lock: the name for the peers, and the name for latchkit. The
// lock differs for each check and each kind of Locker.
func (m *meeting) names(check, kind string) (theirs, ours string) {
	theirs = strings.NewReplacer(" ", "-", ",", "", ":", "").Replace(m.library.name + ":" + check + ":" + kind)
	return theirs, m.library.key(theirs)
}

func (m *meeting) acquire(kind string, rule locker.Rule) *locker.Lease {
	m.Helper()
	return locktest.Acquire(m.T, m.lockers[kind], rule)
}

// busy checks that latchkit does not get the key, and that Inspect reports a foreign holder.
func (m *meeting) busy(kind, key string) {
	m.Helper()
	_, err := m.lockers[kind].Acquire(m.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
	if !errors.Is(err, locker.ErrBusy) && !errors.Is(err, locker.ErrQuorum) {
		m.Fatalf("%s: the key that the peer holds: %v", kind, err)
	}
	info, err := m.lockers[kind].Inspect(m.Context(), key)
	switch {
	case kind == "polling.New": // redislock does not report the holder of a key
	case err != nil || !info.Held || !info.Foreign || info.Left <= 0:
		m.Fatalf("%s: Inspect of the key that the peer holds: %+v %v", kind, info, err)
	}
}

// remaining returns how long the key is still held: until it is free on more than half of the
// servers, each of which got it at a moment of its own.
func (m *meeting) remaining(key string) time.Duration {
	m.Helper()
	var left []time.Duration
	for _, c := range m.redis {
		d, err := c.PTTL(m.Context(), key).Result()
		if err != nil {
			m.Fatal(err)
		}
		left = append(left, d)
	}
	slices.Sort(left)
	return left[len(left)/2]
}

// expire removes the lease of key. For its holder, this is the same as a pause until after the
// end of the TTL.
func (m *meeting) expire(key string) {
	m.Helper()
	for _, c := range m.redis {
		if err := c.Del(m.Context(), key).Err(); err != nil {
			m.Fatal(err)
		}
	}
}

// checkNotBefore fails the test if the key was granted before leaseEnd, when the lease of the
// dead holder ended. It allows 2 ms, because the server counts a TTL in whole milliseconds. The
// parameter who is the name of the caller in the error.
func (m *meeting) checkNotBefore(leaseEnd time.Time, who string) {
	m.Helper()
	if early := time.Until(leaseEnd); early > 2*time.Millisecond {
		m.Errorf("%s got the key %v before the lease of the dead holder was over", who, early)
	}
}

const long, short = time.Minute, 1500 * time.Millisecond

// A check fills a column of the table in docs/guarantees.md. Its function do returns what the other
// library does with a key that latchkit holds. If latchkit does something wrong, do fails the test.
type check struct {
	head string
	do   func(m *meeting) string
}

var checks = []check{
	{"each keeps the other out", forEachKind(theyExcludeEachOther)},
	{"each waits for the other", forEachKind(theyWaitForEachOther)},
	{"it renews", forEachKind(itRenews)},
	{"all at once", theyVisit},
	{"it crashes", itCrashes},
	{"latchkit crashes", latchkitCrashes},
	{"latchkit comes too late", forEachKind(latchkitComesTooLate)},
	{"it comes too late", forEachKind(itComesTooLate)},
}

// forEachKind returns a check that calls the function do for each kind of Locker, each time with
// a different key.
func forEachKind(do func(m *meeting, kind, theirs, ours string) string) func(*meeting) string {
	return func(m *meeting) (found string) {
		for _, kind := range m.kinds {
			theirs, ours := m.names("pair", kind)
			if said := do(m, kind, theirs, ours); said != "" {
				found = said
			}
			m.expire(ours)
		}
		return found
	}
}

func theyExcludeEachOther(m *meeting, kind, theirs, ours string) string {
	m.peer.try(m, theirs, long, "held")
	m.busy(kind, ours)
	m.peer.unlock(m, theirs, "unlocked")
	lease := m.acquire(kind, locker.Rule{Key: ours})
	m.peer.try(m, theirs, long, "busy")
	locktest.Release(m.T, lease)
	m.peer.try(m, theirs, long, "held")
	m.peer.unlock(m, theirs, "unlocked")
	return ""
}

func theyWaitForEachOther(m *meeting, kind, theirs, ours string) string {
	m.peer.try(m, theirs, long, "held")
	waiter := locktest.Asks(m.T, m.lockers[kind], locker.Rule{Key: ours})
	waiter.WaitsStill()
	m.peer.unlock(m, theirs, "unlocked")
	lease := waiter.Granted(time.Second) // the waiter polls, so it gets the key within a second
	m.peer.startWait(theirs, long)
	locktest.Release(m.T, lease)
	m.peer.awaitAnswer(m, "held")
	m.peer.unlock(m, theirs, "unlocked")
	return ""
}

func itRenews(m *meeting, kind, theirs, ours string) string {
	m.peer.try(m, theirs, long/6, "held")
	m.peer.extend(m, theirs, long, "extended")
	if left := m.remaining(ours); left < long/2 {
		m.Errorf("the peer has renewed its key, which lasts for %v", left)
	}
	m.busy(kind, ours)
	m.peer.unlock(m, theirs, "unlocked")
	return ""
}

// itCrashes checks that each kind of Locker gets the key of a killed peer only when the peer's
// lock has expired.
func itCrashes(m *meeting) string {
	over := make(map[string]time.Time)
	waiters := make(map[string]*locktest.Pending)
	for _, kind := range m.kinds {
		theirs, ours := m.names("crash", kind)
		// a short TTL, because redsync allows only a twentieth of the TTL for an attempt
		m.victim.startWait(theirs, short)
		m.victim.awaitAnswer(m, "held")
		at := time.Now()
		over[kind] = at.Add(m.remaining(ours))
		waiters[kind] = locktest.Asks(m.T, m.lockers[kind], locker.Rule{Key: ours})
	}
	m.victim.Kill()
	for kind, w := range waiters {
		lease := w.Granted(short)
		m.checkNotBefore(over[kind].Add(time.Since(w.At)), kind)
		locktest.Release(m.T, lease)
	}
	return ""
}

// latchkitCrashes kills processes that hold keys with latchkit. It checks that the peer gets
// these keys only when the leases have expired.
func latchkitCrashes(m *meeting) string {
	over := make(map[string]time.Time)
	for _, kind := range m.kinds {
		_, ours := m.names("died", kind)
		args := []string{kind}
		for _, s := range m.servers {
			args = append(args, fmt.Sprint(s.Port()))
		}
		holder := newPeer(m, latchkitPeer.Start(m, args...))
		holder.try(m, ours, short, "held")
		at := time.Now()
		over[kind] = at.Add(m.remaining(ours))
		holder.Kill()
	}
	for _, kind := range m.kinds {
		theirs, _ := m.names("died", kind)
		m.peer.startWait(theirs, long)
		m.peer.awaitAnswer(m, "held")
		m.checkNotBefore(over[kind], "the peer")
		m.peer.unlock(m, theirs, "unlocked")
	}
	return ""
}

func latchkitComesTooLate(m *meeting, kind, theirs, ours string) string {
	lease := m.acquire(kind, locker.Rule{Key: ours})
	m.expire(ours)
	m.peer.try(m, theirs, long, "held")
	if !isLost(m, lease) {
		m.Errorf("%s: the release of a lease that was over has succeeded", kind)
	}
	m.peer.extend(m, theirs, long, "extended") // shows that the peer has not lost its lock
	m.peer.unlock(m, theirs, "unlocked")
	return ""
}

// A holder of another library may come back too late, after its lock has expired. latchkit cannot
// protect the key from such a holder. So itComesTooLate does not fail the test, but returns the
// harm, which the table in docs/guarantees.md shows.
func itComesTooLate(m *meeting, kind, theirs, ours string) string {
	var found []string
	for _, late := range []struct{ question, harm string }{
		{"extend " + theirs + " 60000", "takes the key by its renewal"},
		{"unlock " + theirs, "frees the key by its release"},
	} {
		m.peer.try(m, theirs, long, "held")
		m.expire(ours)
		lease := m.acquire(kind, locker.Rule{Key: ours})
		m.peer.sendCommand(late.question)
		m.peer.Expect(m, "answer ")
		if isLost(m, lease) {
			found = append(found, late.harm)
		}
		m.expire(ours)
	}
	return strings.Join(found, ", ")
}

// isLost releases the lease, and reports whether the lease was lost before this release.
func isLost(m *meeting, lease *locker.Lease) bool {
	m.Helper()
	err := lease.Release(m.Context())
	if err != nil && !errors.Is(err, locker.ErrLost) {
		m.Error(err)
	}
	return err != nil
}

// theyVisit makes two peers and each kind of Locker lock one key again and again. It checks that
// no two visits overlap.
func theyVisit(m *meeting) string {
	const visits = 15
	theirs, ours := m.names("visits", "all")
	log := ours + ":log"
	for i, p := range []*peer{m.peer, m.victim} {
		p.startVisits(theirs, long, visits, log, fmt.Sprintf("%s-%d", "peer", i))
	}
	ended := make(chan error)
	for kind, l := range m.lockers {
		go func() { ended <- visitOften(m, l, ours, visits, visitor{m.redis[0], log, kind}) }()
	}
	for range m.lockers {
		if err := <-ended; err != nil {
			m.Error(err)
		}
	}
	m.peer.awaitAnswer(m, "visited")
	m.victim.awaitAnswer(m, "visited")
	all, err := m.redis[0].LRange(m.Context(), log, 0, -1).Result()
	if err != nil {
		m.Fatal(err)
	}
	if n := checkVisits(m, all); n != visits*(2+len(m.lockers)) {
		m.Errorf("%d visits were noted, want %d", n, visits*(2+len(m.lockers)))
	}
	return ""
}

func visitOften(m *meeting, l *locker.Engine, key string, n int, v visitor) error {
	for range n {
		if err := locker.Run(m.Context(), l, locker.Rule{Key: key}, v.visit); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}
