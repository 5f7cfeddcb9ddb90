package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// actorVariable is the environment variable that makes this program a child process with the actors
// of a scene. Pipes connect the child to its parent:
//
//	stdin   an actorConfig; the end of the input ends the actors, even when the parent dies
//	stdout  what happens, one page.Event in a line
const actorVariable = "SCENES_ACTOR"

func isActor() bool { return os.Getenv(actorVariable) != "" }

type actorConfig struct {
	Scene, Mode, Run string
	Names            []string
	Redis, DSN       string
	Stockroom        string // its address
	Seed             uint64
}

// An actor is one participant of a scene, such as a worker that edits a document.
type actor struct {
	actorConfig
	scene *scene
	name  string
	index int
	db    *sql.DB
	redis *redis.Client
	locks *locker.Engine // with readers and writers
	emit  func(page.Event)
}

// actorMain is the main function of a child process with actors.
func actorMain(stdin io.Reader, stdout, stderr io.Writer) int {
	if err := runActors(stdin, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	return 0
}

func runActors(stdin io.Reader, stdout io.Writer) error {
	var cfg actorConfig
	input := bufio.NewReader(stdin)
	if err := json.NewDecoder(io.LimitReader(lineOf(input), 1<<20)).Decode(&cfg); err != nil {
		return fmt.Errorf("read the part to play: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	books, err := openStore(ctx, cfg.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = books.close() }() // nothing is written any more
	client, err := openRedis(ctx, cfg.Redis)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	var mu sync.Mutex
	out := json.NewEncoder(stdout)
	emit := func(e page.Event) {
		mu.Lock()
		defer mu.Unlock()
		e.Lane, e.At = cfg.Mode, time.Now().UnixMilli()
		if out.Encode(e) != nil {
			cancel() // the parent has gone
		}
	}
	locks, err := locker.NewReadWrite(client, locker.WithPrefix("{scenes}:"), locker.WithObserver(watcher{emit}))
	if err != nil {
		return err
	}
	defer func() { _ = locks.Close(context.Background()) }()
	go func() {
		_, _ = io.Copy(io.Discard, input)
		cancel()
	}()
	sc := findScene(cfg.Scene)
	var work sync.WaitGroup
	errs := make([]error, len(cfg.Names))
	for i, name := range cfg.Names {
		work.Go(func() {
			errs[i] = sc.act(ctx, &actor{cfg, sc, name, i, books.db, client, locks, emit})
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// lineOf returns a reader of the next line.
func lineOf(r *bufio.Reader) io.Reader {
	pipe, w := io.Pipe()
	go func() {
		line, err := r.ReadBytes('\n')
		_, _ = w.Write(line)
		_ = w.CloseWithError(err)
	}()
	return pipe
}

// goesOn reports whether a worker goes on after err: it did not get the lock in time, has lost it,
// or was refused by the database.
func goesOn(err error) bool {
	return errors.Is(err, locker.ErrUnavailable) || errors.Is(err, locker.ErrLost) || errors.Is(err, sqllock.ErrStaleFence)
}

// key returns the key of the scene's lock. The braces keep all keys on one node of a Cluster.
func (c actorConfig) key() string { return c.Scene + ":" + c.Run }

// naiveKey returns the key of SETNX + DEL.
func (c actorConfig) naiveKey() string { return "{scenes}:naive:" + c.key() }

// under does the work under the lock of the mode. With latchkit, the lease is in the context of
// work. Readers share the lock if the lock can be shared.
func (a *actor) under(ctx context.Context, mode locker.Mode, work func(ctx context.Context) error) error {
	switch a.Mode {
	case "latchkit":
		//show:run
		rule := locker.Rule{Key: a.key(), TTL: a.scene.ttl, Mode: mode, Metadata: a.name}
		return locker.Run(ctx, a.locks, rule, work)
		//show:end
	case "SETNX + DEL":
		return a.naive(ctx, a.naiveKey(), work)
	default:
		a.emit(page.Event{Who: a.name, Kind: page.Stale})
		defer a.emit(page.Event{Who: a.name, Kind: page.Free})
		return work(ctx)
	}
}

// naive is the lock of setnxDel in locks.go. Its mistakes are explained there.
func (a *actor) naive(ctx context.Context, key string, work func(ctx context.Context) error) error {
	waits, ttl := false, a.scene.ttl
	if a.scene.forever {
		ttl = 0
	}
	for {
		//show:naive
		ok, err := a.redis.SetNX(ctx, key, "locked", ttl).Result()
		//show:end
		if err != nil {
			return err
		}
		if ok {
			break
		}
		if !waits {
			waits = true
			a.emit(page.Event{Who: a.name, Kind: page.Wait})
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	a.emit(page.Event{Who: a.name, Kind: page.Hold})
	if ttl > 0 {
		expired := time.AfterFunc(ttl, func() {
			a.emit(page.Event{Who: a.name, Kind: page.Lost, Text: "does not notice that its lock has expired"})
			a.emit(page.Event{Who: a.name, Kind: page.Stale})
		})
		defer expired.Stop()
	}
	//show:naive
	err := work(ctx)
	//show:end
	a.emit(page.Event{Who: a.name, Kind: page.Free}) // before the DEL, for stage.hit
	//show:naive
	a.redis.Del(context.WithoutCancel(ctx), key)
	//show:end
	return err
}

// named is the key of a context with the name of a participant, for requests and tasks.
type named struct{}

// nameOf returns the name of the participant that asks for a lock.
func nameOf(ctx context.Context, rule locker.Rule) string {
	if name, ok := ctx.Value(named{}).(string); ok {
		return name
	}
	return rule.Metadata
}

// watcher is an Observer that shows what a Locker does.
type watcher struct{ emit func(page.Event) }

var (
	_ locker.WaitObserver    = watcher{}
	_ locker.RenewalObserver = watcher{}
)

// Begin shows a hold, and how it ends.
func (w watcher) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	who := nameOf(ctx, rule)
	switch op {
	case locker.OpAcquire:
		return ctx, func(o locker.Outcome) {
			if o.Err != nil {
				w.emit(page.Event{Who: who, Kind: page.Free})
				return
			}
			w.emit(page.Event{Who: who, Kind: page.Hold, Fence: o.Fence})
			if o.Handoff != "" {
				w.emit(page.Event{Who: who, Kind: page.Handoff})
			}
		}
	case locker.OpHold:
		return ctx, func(o locker.Outcome) {
			if o.Err != nil {
				w.emit(page.Event{Who: who, Kind: page.Lost, Text: "learns that its lease is lost: " + o.Cause})
			}
			w.emit(page.Event{Who: who, Kind: page.Free})
		}
	default: // the page does not show it
		return ctx, nil
	}
}

// Waiting shows a wait.
func (w watcher) Waiting(ctx context.Context, rule locker.Rule, _ locker.WaitEvent) (over func()) {
	w.emit(page.Event{Who: nameOf(ctx, rule), Kind: page.Wait})
	return nil
}

// Renewed shows a renewal.
func (w watcher) Renewed(ctx context.Context, rule locker.Rule, e locker.RenewalEvent) {
	if e.Err == nil {
		w.emit(page.Event{Who: nameOf(ctx, rule), Kind: page.Renew})
	}
}
