package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
)

// throughTap changes the options so that tap finds the connections of the client.
func throughTap(tap *Tap) func(o *redis.Options) {
	return func(o *redis.Options) {
		boundCalls(o)
		o.MaintNotificationsConfig = NoNotices()
		o.Dialer = tap.Dialer(o.Dialer, o.DialTimeout, o.TLSConfig)
	}
}

// newDuplexLinks returns Links that write and read their connection to the server by themselves.
func newDuplexLinks(t *testing.T, server *redistest.Server, mod ...func(*redis.Options)) *Links {
	t.Helper()
	tap := new(Tap)
	return newLinks(t, server.Client(t, append(mod, throughTap(tap))...), Options{Tap: tap})
}

// hasOwnConnection reports whether the Links have a connection of their own.
func hasOwnConnection(ls *Links) bool {
	return readLink(ls, func(l *link) bool { return l.duplex != nil && l.duplex.wire != nil })
}

// go-redis makes the connection, so the link need not know how.
func TestALinkUsesTheConnectionsOfAnyClient(t *testing.T) {
	t.Parallel()
	plain, secure := redistest.Start(t), redistest.StartTLS(t)
	user := plain.Client(t)
	allow := func(t *testing.T, name string, rights ...any) {
		if err := user.Do(t.Context(), append([]any{"acl", "setuser", name}, rights...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"locks", "noecho"} {
		allow(t, name, "on", ">secret", "~*", "+@all")
	}
	allow(t, "noecho", "-echo")
	var connected atomic.Int32
	for name, c := range map[string]struct {
		server *redistest.Server
		mod    func(*redis.Options)
	}{
		"RESP2": {plain, func(o *redis.Options) { o.Protocol = 2 }},
		"RESP3": {plain, func(o *redis.Options) { o.Protocol = 3 }},
		"TLS":   {secure, func(*redis.Options) {}},
		"a user and a database": {plain, func(o *redis.Options) {
			o.Username, o.Password, o.DB, o.ClientName = "locks", "secret", 3, "locker"
		}},
		"a user without ECHO": {plain, func(o *redis.Options) { o.Username, o.Password = "noecho", "secret" }},
		"a provider of credentials": {plain, func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "locks", "secret", nil }
		}},
		"a dialer and OnConnect": {plain, func(o *redis.Options) {
			o.Dialer = new(net.Dialer).DialContext
			o.OnConnect = func(context.Context, *redis.Conn) error { connected.Add(1); return nil }
		}},
		"a pool of one": {plain, func(o *redis.Options) { o.PoolSize = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			ls := newDuplexLinks(t, c.server, c.mod)
			key := "for " + name
			for range 20 {
				if _, err := ls.Do(t.Context(), countCall(key)); err != nil {
					t.Fatal(err)
				}
			}
			if failed := sendTogether(t, ls, 50, func(int) string { return key }); failed != nil {
				t.Error(failed)
			}
			if own := hasOwnConnection(ls); own != (name != "a user without ECHO") {
				t.Errorf("own connection: %v", own)
			}
			if n, err := ls.Do(t.Context(), &Call{Words: []any{"get", key}, Key: key, Class: Ask}); n != "70" {
				t.Errorf("70 calls were executed %s times (%v)", n, err)
			}
		})
	}
	if connected.Load() == 0 {
		t.Error("OnConnect was not called")
	}
}

// A lone caller writes its call and reads the answer on its own goroutine, if the answers come
// soon.
func TestALoneCallerWritesAndReadsByItself(t *testing.T) {
	t.Parallel()
	ls := newDuplexLinks(t, redistest.Start(t))
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	await(t, "Send returns with the answer", func() bool {
		c := countCall("k")
		ls.Send(t.Context(), c)
		defer func() { <-done(c) }()
		return c.fate.Load() == answered
	})
}

// A server that stalls, or that is gone and comes back, gets one new connection after the other,
// and all callers are answered soon after.
func TestAStallOfTheServerCostsFewConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var dials atomic.Int32
	ls := newDuplexLinks(t, server, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	var work sync.WaitGroup
	stop := make(chan struct{})
	var answers, longest atomic.Int64
	for g := range 64 {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				began := time.Now()
				if _, err := ls.Do(ctx, countCall(fmt.Sprint("k", g))); err == nil {
					answers.Add(1)
				}
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				cancel()
			}
		})
	}
	await(t, "the callers are at work", func() bool { return answers.Load() > 5000 })
	before := dials.Load()
	server.Pause()
	time.Sleep(3 * time.Second) //nolint:forbidigo // the time for which the server is stopped
	server.Resume()
	at := answers.Load()
	await(t, "all callers are answered again", func() bool { return answers.Load() > at+1000 })
	if n := dials.Load() - before; n == 0 || n > 10 {
		t.Errorf("%d new connections", n)
	}
	server.Kill()
	server.Restart()
	at = answers.Load()
	await(t, "all callers are answered after a restart", func() bool { return answers.Load() > at+1000 })
	close(stop)
	work.Wait()
	if took := time.Duration(longest.Load()); took > 350*time.Millisecond+busy {
		t.Errorf("a caller was back after %v, its context had ended after 100 ms", took)
	}
}

// A dead connection delays the calls on it for 250 ms. They are unclear, and later calls use
// another connection.
func TestCallsBehindADeadConnectionAreUnclearSoon(t *testing.T) {
	t.Parallel()
	proxy := chaos.NewProxy(t, redistest.Start(t).Addr())
	tap := new(Tap)
	ls := newLinks(t, proxyClient(t, proxy, tap), Options{Tap: tap})
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	swallowed := proxy.SwallowReplies(1, chaos.Containing("hole"))
	began := time.Now()
	failed := sendTogether(t, ls, 20, func(i int) string { return fmt.Sprint("hole", i) })
	if took := time.Since(began); took > 250*time.Millisecond+busy {
		t.Errorf("the callers are back after %v", took)
	}
	if swallowed.Hits() == 0 || !slices.ContainsFunc(failed, func(err error) bool { return errors.Is(err, ErrNoAnswer) }) {
		t.Errorf("%d replies were swallowed, the calls ended with %v", swallowed.Hits(), failed)
	}
	if _, err := ls.Do(t.Context(), countCall("well")); err != nil {
		t.Error(err)
	}
}

// A proxy may drop a reply, or pass one on twice, and then go on. No call gets the answer to
// another call: the answers behind the fault do not match, so these calls are unclear.
func TestNoCallGetsTheAnswerToAnotherCall(t *testing.T) {
	t.Parallel()
	proxy := chaos.NewProxy(t, redistest.Start(t).Addr())
	tap := new(Tap)
	ls := newLinks(t, proxyClient(t, proxy, tap), Options{Tap: tap})
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	for name, inject := range map[string]func(n int, match chaos.Match) *chaos.Fault{
		"a dropped reply": proxy.DropReplies, "a repeated reply": proxy.RepeatReplies,
	} {
		for _, what := range []string{"bad", "echo"} { // the reply to a call, and the reply to a marker
			await(t, "calls are answered", func() bool {
				_, err := ls.Do(t.Context(), countCall("warm"))
				return err == nil && hasOwnConnection(ls)
			})
			fault := inject(1, chaos.Containing(what))
			failed := putTogether(t, ls, 30, func(i int) string { return fmt.Sprint(i, "bad") })
			if fault.Hits() != 1 || len(failed) == 0 && name == "a dropped reply" {
				t.Errorf("%s: %d hits, %d calls are unclear", name, fault.Hits(), len(failed))
			}
			for _, err := range failed {
				if !errors.Is(err, errUnmatched) && !errors.Is(err, errProtocol) && !errors.Is(err, ErrNoAnswer) {
					t.Errorf("%s: a call ended with %v", name, err)
				}
			}
		}
	}
}

// putTogether makes n calls at the same time, call i for the key key(i), without reading for them.
// It returns the errors of the calls that failed, and compares the answers of the others.
func putTogether(t *testing.T, ls *Links, n int, key func(i int) string) (failed []error) {
	t.Helper()
	var calls []*Call
	for i := range n {
		calls = append(calls, countCall(key(i)))
		ls.Put(t.Context(), calls[i])
	}
	for i, c := range calls {
		<-done(c)
		if text, err := c.Answer(); err != nil {
			failed = append(failed, err)
		} else if text != key(i) {
			t.Errorf("the answer to %s is %s", key(i), text)
		}
	}
	return failed
}

func proxyClient(t *testing.T, proxy *chaos.Proxy, tap *Tap) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: proxy.Addr()}
	throughTap(tap)(o)
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// When connections break while calls are under way, no call is sent twice.
func TestNoCallIsSentTwiceWhenItsConnectionBreaks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	tap := new(Tap)
	ls := newLinks(t, proxyClient(t, proxy, tap), Options{Tap: tap})
	if failed := sendTogether(t, ls, 5, func(int) string { return "warm" }); failed != nil {
		t.Fatal(failed)
	}
	var work sync.WaitGroup
	var broken atomic.Int32
	for g := range 16 {
		work.Go(func() {
			for i := range 100 {
				if _, err := ls.Do(t.Context(), countCall(fmt.Sprint("k:", g, ":", i))); err != nil {
					broken.Add(1)
				}
			}
		})
	}
	admin := server.Client(t)
	for range 20 {
		proxy.Cut()
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // the callers must get on meanwhile
	}
	work.Wait()
	for g := range 16 {
		for i := range 100 {
			if n, _ := admin.Get(t.Context(), fmt.Sprint("k:", g, ":", i)).Int(); n > 1 {
				t.Errorf("call %d of caller %d was executed %d times", i, g, n)
			}
		}
	}
	t.Logf("%d of 1600 calls failed", broken.Load())
}

// A connection that the server closed while it was idle is found before a call is written, so the
// call succeeds.
func TestAnIdleConnectionIsCheckedBeforeItsNextCall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ls := newDuplexLinks(t, server)
	if _, err := ls.Do(t.Context(), countCall("k")); err != nil {
		t.Fatal(err)
	}
	readLink(ls, func(l *link) bool {
		l.duplex.wire.used = time.Now().Add(-checkAfter)
		return true
	})
	if err := server.Client(t).ClientKillByFilter(t.Context(), "skipme", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := ls.Do(t.Context(), countCall("k")); err != nil {
		t.Errorf("a call met the dead connection: %v", err)
	}
}

// A connection older than the client's ConnMaxLifetime is replaced between calls.
func TestAConnectionIsReplacedWhenItsLifeIsOver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ls := newDuplexLinks(t, server, func(o *redis.Options) { o.ConnMaxLifetime = 50 * time.Millisecond })
	first := ""
	await(t, "another connection is used", func() bool {
		id, err := ls.Do(t.Context(), &Call{Words: []any{"client", "id"}, Class: Ask})
		if err != nil {
			t.Error(err)
		}
		if first == "" {
			first = id
		}
		return id != first
	})
}

// Scripts that the server has forgotten are sent with their texts, and every call is executed once.
func TestForgottenScriptsRunOnceOnOneConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ls := newDuplexLinks(t, server)
	admin := server.Client(t)
	for round := 1; round <= 5; round++ {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if failed := sendTogether(t, ls, 40, func(i int) string { return fmt.Sprint("k", i) }); failed != nil {
			t.Fatal(failed)
		}
		for i := range 40 {
			if n, _ := admin.Get(t.Context(), fmt.Sprint("k", i)).Int(); n != round {
				t.Errorf("k%d was counted %d times in %d rounds", i, n, round)
			}
		}
	}
}

// A renewal of many leases is written while calls that travel together wait for their answers:
// otherwise it would never be written while other callers take locks without a break.
func TestARenewalOfManyLeasesPassesBetweenGroups(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ls := newDuplexLinks(t, server)
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprint(strings.Repeat("n", 60), i))
	}
	if _, failed := sendJointly(t, ls, names); failed != nil {
		t.Fatal(failed)
	}
	server.Pause()
	answered := make(chan []error, 1)
	go func() {
		_, failed := sendJointly(t, ls, names)
		answered <- failed
	}()
	await(t, "the calls are under way", func() bool {
		return readLink(ls, func(l *link) bool { w := l.duplex.wire; return w != nil && w.head < len(w.slots) })
	})
	large := namedCall(strings.Repeat("r", largeCall+1), Renewal)
	ls.Put(t.Context(), large)
	await(t, "the renewal is under way", func() bool { return large.fate.Load() == underWay })
	server.Resume()
	<-done(large)
	<-answered
}

// A server that became a replica answers READONLY. The next call uses another connection, which a
// client of Sentinel makes to the new master.
func TestAConnectionToAReplicaIsReplaced(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t)
	tap := new(Tap)
	client := set.Client(t, func(o *redis.FailoverOptions) {
		o.ContextTimeoutEnabled = true
		o.Dialer = tap.Dialer(o.Dialer, o.DialTimeout, o.TLSConfig)
	})
	ls := newLinks(t, client, Options{Tap: tap})
	if _, err := ls.Do(t.Context(), countCall("k")); err != nil || !hasOwnConnection(ls) {
		t.Fatal(err)
	}
	if err := set.Sentinels[0].Client(t).Do(t.Context(), "sentinel", "failover", redistest.SentinelName).Err(); err != nil {
		t.Fatal(err)
	}
	promoted := set.Promoted(t).Client(t)
	await(t, "calls go to the new master", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = ls.Do(ctx, countCall("moved"))
		n, _ := promoted.Get(t.Context(), "moved").Int()
		return n > 0
	})
	if !hasOwnConnection(ls) {
		t.Error("the calls went through the client")
	}
}

// On a Cluster, each master has a connection of its own, and calls follow their slot.
func TestCallsOnOwnConnectionsFollowTheirSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	tap := new(Tap)
	client := cluster.Client(t, func(o *redis.ClusterOptions) {
		o.ContextTimeoutEnabled, o.MaintNotificationsConfig = true, NoNotices()
		o.Dialer = tap.Dialer(o.Dialer, o.DialTimeout, o.TLSConfig)
	})
	ls := newLinks(t, client, Options{Tap: tap})
	key, slot := keyOn(t, client, cluster, 0, "k")
	count := func(key string) {
		t.Helper()
		if _, err := ls.Do(t.Context(), countCall(key)); err != nil {
			t.Fatal(err)
		}
	}
	count(key)
	move := cluster.Migrate(t, slot, cluster.Masters[0], cluster.Masters[1])
	count(key)
	count(key + "2") // ASK
	move.Carry()
	count(key) // ASK
	move.Finish()
	for range 20 {
		count(key) // MOVED
	}
	if failed := sendTogether(t, ls, 20, func(int) string { return key }); failed != nil {
		t.Error(failed)
	}
	own := 0
	ls.nodes.Range(func(_, l any) bool {
		if l := l.(*link); l.duplex != nil && l.duplex.wire != nil {
			own++
		}
		return true
	})
	if n, _ := client.Get(t.Context(), key).Int(); n != 43 || own < 2 {
		t.Errorf("43 calls were executed %d times, over %d connections", n, own)
	}
	cluster.Failover(t, cluster.Replicas[1])
	cluster.Masters[1].Kill()
	await(t, "the new master answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ls.Do(ctx, countCall(key))
		return err == nil
	})
}
