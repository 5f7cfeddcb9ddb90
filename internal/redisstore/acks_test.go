package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// replicated is a master, and a replica at the other end of a pipe that can freeze.
type replicated struct {
	server  *redistest.Server
	master  *redis.Client
	replica *redis.Client
	pipe    *chaos.Pipe
}

// isLevel reports whether the replica has acknowledged all writes of the master.
func (r *replicated) isLevel(t *testing.T) bool {
	fields := make(map[string]string)
	for line := range strings.Lines(r.master.Info(t.Context(), "replication").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	return strings.Contains(fields["slave0"], "state=online,offset="+fields["master_repl_offset"]+",")
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	pipe := chaos.NewPipe(t, server.Addr())
	host, port, err := net.SplitHostPort(pipe.Addr())
	if err != nil {
		t.Fatal(err)
	}
	r := &replicated{
		server: server, master: server.Client(t, patientReads), pipe: pipe,
		replica: redistest.Start(t, "--replicaof", host, port).Client(t),
	}
	eventually(t, "the replica follows", func() bool {
		return strings.Contains(r.replica.Info(t.Context(), "replication").Val(), "master_link_status:up") &&
			r.master.Wait(t.Context(), 1, time.Second).Val() == 1
	})
	return r
}

const ackWithin = time.Second

// patientReads makes ReadTimeout longer than any acknowledgement that a test waits for. By default
// go-redis gives up reading after 3 s.
func patientReads(o *redis.Options) { o.ReadTimeout = 10 * time.Second }

func TestAGrantCountsWhenReplicasHaveAcknowledgedIt(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	l := newSingle(t, r.master, locker.WithReplicaAck(1, ackWithin))
	lease := acquire(t, l, locker.Rule{Key: "a"})
	if r.replica.Exists(t.Context(), "a").Val() != 1 {
		t.Fatal("the lease was granted, and the replica does not know it")
	}
	release(t, lease)

	r.pipe.Freeze()
	for _, wait := range []time.Duration{locker.NoWait, 0} {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: wait, TTL: time.Hour}) // an hour, so that the lease does not run out
		e := wantErr(t, err, "b", locker.ErrUnavailable)
		wantNot(t, err, locker.ErrBusy)
		if !strings.Contains(e.Error(), "0 of 1") {
			t.Errorf("it does not say how many have acknowledged: %v", e)
		}
		eventually(t, "the grant is undone", func() bool { return r.master.Exists(t.Context(), "b").Val() == 0 })
	}
	if r.pipe.Kept() == 0 {
		t.Fatal("positive control: no replication was kept back")
	}
	release(t, acquire(t, newSingle(t, r.master), locker.Rule{Key: "b"})) // positive control: the master itself still serves
	r.pipe.Thaw()
	eventually(t, "it is granted again", func() bool {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "b"})
		return err == nil && lease.Release(t.Context()) == nil
	})
}

// A failover, for example, ends the WAITs that are under way. After such an end, the number of
// acknowledgements is unknown, so the WAIT is repeated.
func TestAWaitThatIsCutShortIsRepeated(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	l := newSingle(t, r.master, locker.WithReplicaAck(1, 2500*time.Millisecond))
	release(t, acquire(t, l, locker.Rule{Key: "a"})) // now the server knows the script, so the next acquire makes only one WAIT
	r.pipe.Freeze()
	granted := make(chan error, 1)
	go func() {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
		granted <- err
	}()
	eventually(t, "a WAIT is cut short", func() bool {
		for line := range strings.Lines(r.master.ClientList(t.Context()).Val()) {
			if id, _, ok := strings.Cut(strings.TrimPrefix(line, "id="), " "); ok && strings.Contains(line, " cmd=wait ") {
				return r.master.Do(t.Context(), "client", "unblock", id, "error").Val() == int64(1)
			}
		}
		return false
	})
	r.pipe.Thaw()
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
}

// A WAIT covers no write that came after the last command of its own connection. So a WAIT on
// another connection of the pool proves nothing: it would confirm a write that no replica has.
func TestAWaitOnAnotherConnectionConfirmsNothing(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	writer, waiter := r.master.Conn(), r.master.Conn()
	t.Cleanup(func() { _, _ = writer.Close(), waiter.Close() })
	// A WAIT covers everything that was written, by any client, before the last command of its
	// connection.
	eventually(t, "the replica has acknowledged all that there is", func() bool {
		return waiter.Ping(t.Context()).Err() == nil && r.isLevel(t)
	})
	r.pipe.Freeze()
	if err := writer.Set(t.Context(), "key", "mine", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n := waiter.Wait(t.Context(), 1, ackWithin).Val(); n != 1 {
		t.Fatalf("positive control: %d have acknowledged what the other connection did, want a false 1", n)
	}
	if n := writer.Wait(t.Context(), 1, ackWithin).Val(); n != 0 {
		t.Fatalf("%d have acknowledged what was kept back", n)
	}
}

// The server answers NOSCRIPT to the first pipeline, so the WAIT in this pipeline has no write to
// wait for.
func TestAWaitBehindAnUnknownScriptConfirmsNothing(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	proxy := chaos.NewProxy(t, r.server.Addr())
	l := newSingle(t, through(t, r.server, proxy), locker.WithReplicaAck(1, ackWithin))
	r.pipe.Freeze()
	proxy.ResetCommands()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a"})
	wantErr(t, err, "a", locker.ErrUnavailable)
	n := proxy.Commands()
	if n["EVAL"] != 1 || n["WAIT"] != 2 {
		t.Fatalf("%v, want the script by name and by text, with a WAIT each", n)
	}
}

func TestARenewalCountsWhenReplicasHaveAcknowledgedIt(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	rule := locker.Rule{Key: "a", TTL: 3 * time.Second}
	plain := acquire(t, newSingle(t, r.master), locker.Rule{Key: "plain", TTL: rule.TTL})
	lease := acquire(t, newSingle(t, r.master, locker.WithReplicaAck(1, ackWithin)), rule)
	first := lease.Expires()
	eventually(t, "it is renewed", func() bool { return lease.Expires().After(first) })

	r.pipe.Freeze()
	lost(t, lease, locker.ErrLost)
	if err := lease.Release(t.Context()); !strings.Contains(err.Error(), "acknowledged") {
		t.Errorf("the loss does not say why: %v", err)
	}
	if r.pipe.Kept() == 0 || plain.Context().Err() != nil {
		t.Fatal("positive control: without acknowledgements the master renews")
	}
	release(t, plain)
}

func TestAnExtensionCountsWhenReplicasHaveAcknowledgedIt(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	lease := acquire(t, newSingle(t, r.master, locker.WithReplicaAck(1, ackWithin)), locker.Rule{Key: "a"})
	if err := lease.Extend(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	before := lease.Expires()
	r.pipe.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 2*ackWithin)
	defer cancel()
	if err := lease.Extend(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("err = %v", err)
	}
	if !lease.Expires().Equal(before) {
		t.Error("the lease counts on what no replica knows")
	}
	if left := r.master.PTTL(t.Context(), "a").Val(); left < 2*time.Minute {
		t.Errorf("positive control: the master gives it %v", left)
	}
	release(t, lease)
}

// No replica has acknowledged a grant that comes by message. So the winner asks the server, and
// only the reply to this request counts.
func TestAGrantByMessageIsAcknowledgedBeforeItCounts(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]locker.SingleOption{
		"acknowledged":                       {locker.WithReplicaAck(1, ackWithin)},
		"positive control: not acknowledged": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReplicated(t)
			holder := acquire(t, newSingle(t, r.master), locker.Rule{Key: "a"})
			winner := queues(t, newSingle(t, r.server.Client(t), opts...), locker.Rule{Key: "a"}, r.master)
			r.pipe.Freeze()
			release(t, holder)
			if opts == nil {
				release(t, winner.Granted(time.Second))
				return
			}
			<-winner.Done
			wantErr(t, winner.Err, "a", locker.ErrUnavailable)
			eventually(t, "it gives the key back", func() bool { return r.master.Exists(t.Context(), "a").Val() == 0 })
			r.pipe.Thaw()
			release(t, acquire(t, newSingle(t, r.server.Client(t), opts...), locker.Rule{Key: "a"}))
		})
	}
}

func TestStreaksGoOnWithAcknowledgements(t *testing.T) {
	t.Parallel()
	r := startReplicated(t)
	var rec lockertest.Recorder
	l := newSingle(t, r.master, locker.WithReplicaAck(1, 4*time.Second), locker.WithObserver(&rec))
	const callers = 200
	done := make(chan error, callers)
	for range callers {
		go func() {
			done <- locker.Run(t.Context(), l, locker.Rule{Key: "a"}, func(context.Context) error { return nil })
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	fences, calls := map[uint64]bool{}, 0
	for _, r := range rec.Records(locker.OpAcquire) {
		fences[r.Outcome.Fence] = true
		calls += r.Outcome.Calls
	}
	if len(fences) != callers || calls >= callers {
		t.Fatalf("%d fences for %d callers, in %d calls", len(fences), callers, calls)
	}
}

func TestWithReplicaAckSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	for advice, try := range map[string]func() (*locker.Engine, error){
		"at least one replica": func() (*locker.Engine, error) { return locker.New(client, locker.WithReplicaAck(0, time.Second)) },
		"at least 1ms":         func() (*locker.Engine, error) { return locker.New(client, locker.WithReplicaAck(1, 0)) },
		"ReadTimeout": func() (*locker.Engine, error) {
			return locker.New(client, locker.WithReplicaAck(1, 10*time.Second))
		},
		"no Pipeline": func() (*locker.Engine, error) {
			return locker.New(struct{ locker.Client }{client}, locker.WithReplicaAck(1, time.Second))
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("%v, want something about %q", err, advice)
		}
	}
}
