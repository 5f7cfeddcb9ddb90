package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/internal/proc"
)

// A stage runs one scene in all three modes, with the actors in processes of their own.
type stage struct {
	*scene
	run   string // keeps this run apart from others on the same servers
	seed  uint64
	venue *venue
	redis *redis.Client
	books *store
	show  func(page.Event)

	mu       sync.Mutex
	holders  map[string][]holding // by mode: who is at work under the lock; the last one got it last
	killed   map[string]time.Time // by mode: when its holder was killed, until the next one gets the lock
	recovery map[string]time.Duration
	kills    map[string]int
	began    time.Time
	freed    map[string]time.Time // by mode: when a lock was released last
	children []*child
	work     sync.WaitGroup
	starting sync.Mutex // a process takes the place of another, or the scene ends
	over     bool       // guarded by starting
	failed   []error
	end      context.CancelFunc
}

// A child is a process with actors.
type child struct {
	actorConfig
	process *proc.Process
	stdin   io.WriteCloser
	voice   *os.File      // the writing end of its stdout
	heard   chan struct{} // see hearOut
	paused  bool
}

// A holding is the work of an actor under a lock.
type holding struct {
	who   string
	child *child
}

// openStage starts the scene. close ends it.
func openStage(ctx context.Context, sc *scene, v *venue, seed uint64, show func(page.Event)) (s *stage, err error) {
	s = &stage{
		scene: sc, run: strings.ToLower(rand.Text()[:8]), seed: seed, venue: v, show: show, began: time.Now(),
		holders: map[string][]holding{}, killed: map[string]time.Time{}, recovery: map[string]time.Duration{}, kills: map[string]int{}, freed: map[string]time.Time{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.redis, err = openRedis(ctx, v.redis); err != nil {
		return s, err
	}
	if s.books, err = openStore(ctx, v.dsn); err != nil {
		return s, err
	}
	ctx, s.end = context.WithCancel(ctx)
	for _, way := range ways {
		if _, err := s.books.db.ExecContext(ctx, query("document_new"), s.run, way.name); err != nil {
			return s, err
		}
		if err := s.books.fill(ctx, s.sku(way.name), saleItems); err != nil {
			return s, err
		}
		for _, names := range sc.cast {
			if err := s.start(actorConfig{sc.name, way.name, s.run, names, v.redis, v.dsn, v.stockroom.addr, seed}); err != nil {
				return s, err
			}
		}
	}
	if sc.direct != nil {
		s.work.Go(func() {
			if err := sc.direct(ctx, s); ctx.Err() == nil { // asynq hides that its context has ended
				s.fail(err)
			}
		})
	}
	return s, nil
}

// fail remembers an error.
func (s *stage) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = append(s.failed, err)
	}
}

// start starts this program again, as a process with actors.
func (s *stage) start(cfg actorConfig) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), actorVariable+"=1")
	cmd.Stderr = os.Stderr
	c, err := s.launch(cmd, cfg)
	if err != nil {
		return err
	}
	return json.NewEncoder(c.stdin).Encode(cfg)
}

// launch starts a process with actors, and notes what it says.
func (s *stage) launch(cmd *exec.Cmd, cfg actorConfig) (*child, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	process, err := proc.Launch(cmd)
	if err != nil {
		_ = errors.Join(w.Close(), out.Close()) // nothing was written
		return nil, err
	}
	c := &child{actorConfig: cfg, process: process, stdin: stdin, voice: w, heard: make(chan struct{}, 1)}
	go func() {
		<-process.Exited()
		_ = w.Close() // so that the reading ends
	}()
	s.mu.Lock()
	s.children = append(s.children, c)
	s.mu.Unlock()
	s.work.Go(func() {
		defer func() { _ = out.Close() }()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e page.Event
			if len(lines.Bytes()) == 0 {
				c.heard <- struct{}{}
			} else if json.Unmarshal(lines.Bytes(), &e) == nil {
				s.note(c, e)
			}
		}
	})
	return c, nil
}

// hearOut returns when all that a child has said is noted. The child stands still. An empty line
// behind its last words comes back last.
func (c *child) hearOut() {
	_, _ = fmt.Fprintln(c.voice) // fails only if the child has ended
	select {
	case <-c.heard:
	case <-c.process.Exited():
	}
}

// note shows an event of an actor, and what follows from it for the others.
func (s *stage) note(c *child, e page.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case page.Hold:
		s.leave(e.Lane, func(old holding) bool {
			lost := old.child != c && old.child.paused
			if lost {
				s.show(page.Event{Lane: e.Lane, Who: old.who, Kind: page.Lost, Text: "has lost the lock in its sleep, and cannot know"})
				s.show(page.Event{Lane: e.Lane, Who: old.who, Kind: page.Stale})
			}
			return lost
		})
		s.holders[e.Lane] = append(s.holders[e.Lane], holding{e.Who, c})
		if at, ok := s.killed[e.Lane]; ok {
			s.recovery[e.Lane] = max(s.recovery[e.Lane], time.Since(at))
			delete(s.killed, e.Lane)
		}
	case page.Stale:
		if e.Lane == "no lock" {
			s.holders[e.Lane] = append(s.holders[e.Lane], holding{e.Who, c})
		}
	case page.Free, page.Write, page.Harm, page.Refused: // a write is the end of the work
		if e.Kind == page.Free {
			s.freed[e.Lane] = time.Now()
		}
		s.leave(e.Lane, func(h holding) bool { return h == holding{e.Who, c} })
	default: // no holder changes
	}
	s.show(e)
}

// leave forgets holders of a mode. The caller has s.mu.
func (s *stage) leave(mode string, which func(holding) bool) {
	s.holders[mode] = slices.DeleteFunc(s.holders[mode], which)
}

// holder returns the last holder of a mode, or only the last one in a process. The caller has s.mu.
func (s *stage) holder(mode string, in *child) (last holding) {
	for _, h := range s.holders[mode] {
		if in == nil || h.child == in {
			last = h
		}
	}
	return last
}

// sku is the article of a mode in the sale.
func (s *stage) sku(mode string) string { return s.run + "-" + mode }

// pauseLength is longer than the TTL of each scene that has the button.
const pauseLength = 2500 * time.Millisecond

// do does what a button says, in all modes. Holders change all the time, so in each mode do waits
// for a moment at which somebody holds the lock.
func (s *stage) do(button string) error {
	if button == "flush" {
		return s.flush()
	}
	var work sync.WaitGroup
	hits, errs := make([]bool, len(ways)), make([]error, len(ways))
	for i, way := range ways {
		work.Go(func() {
			for end := time.Now().Add(pauseLength + time.Second); !hits[i] && errs[i] == nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				hits[i], errs[i] = s.hit(way.name, button)
			}
		})
	}
	work.Wait()
	if !slices.Contains(hits, true) {
		errs = append(errs, errors.New("nobody holds a lock at this moment; try again"))
	}
	return errors.Join(errs...)
}

// hit pauses or kills the holder of a mode. It reports whether there was one. What the stage knows
// of a process is late, so hit makes the process stand still first, and hears it out: if it has
// finished its work meanwhile, it goes on as if nothing had happened.
func (s *stage) hit(mode, button string) (bool, error) {
	s.mu.Lock()
	c := s.holder(mode, nil).child
	busy := c != nil && !c.paused
	s.mu.Unlock()
	if !busy {
		return false, nil
	}
	if err := c.process.Pause(); err != nil {
		return false, err
	}
	c.hearOut()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holder(mode, c)
	if h.child == nil {
		return false, c.process.Resume()
	}
	if button == "pause" {
		c.paused = true
		s.show(page.Event{Lane: mode, Who: h.who, Kind: page.Pause, Text: fmt.Sprintf("is paused for %v", pauseLength)})
		time.AfterFunc(pauseLength, func() { s.resume(c, h.who) })
		return true, nil
	}
	if err := c.process.Kill(); err != nil {
		return false, err
	}
	s.show(page.Event{Lane: mode, Who: h.who, Kind: page.Kill, Text: "was killed"})
	s.leave(mode, func(h holding) bool { return h.child == c })
	s.killed[mode] = time.Now()
	s.kills[mode]++
	s.replace(c)
	return true, nil
}

func (s *stage) resume(c *child, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.paused = false
	s.show(page.Event{Lane: c.Mode, Who: who, Kind: page.Resume, Text: "runs again, and does not know how long it slept"})
	_ = c.process.Resume() // the process may have ended with the scene
}

// replace starts another process in the place of a killed one, after a while.
func (s *stage) replace(old *child) {
	time.AfterFunc(2*time.Second, func() {
		s.starting.Lock()
		defer s.starting.Unlock()
		if !s.over {
			s.fail(s.start(old.actorConfig))
		}
	})
}

// flush deletes the locks. On a Redis of the user, it deletes only the locks of this scene.
func (s *stage) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, way := range ways[1:] {
		s.mu.Lock()
		who := s.holder(way.name, nil).who
		s.mu.Unlock()
		s.show(page.Event{Lane: way.name, Who: who, Kind: page.Lost, Text: "has its lock deleted: Redis lost its data"})
	}
	if s.venue.local {
		return s.redis.FlushAll(ctx).Err()
	}
	return s.remove(ctx, "{scenes}:*"+s.run+"*")
}

// remove deletes the keys that match a pattern.
func (s *stage) remove(ctx context.Context, pattern string) error {
	keys := s.redis.Scan(ctx, 0, pattern, 1000).Iterator()
	for keys.Next(ctx) {
		if err := s.redis.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// cards returns the figures of all modes, from the database.
func (s *stage) cards(ctx context.Context) ([]page.Card, map[string]page.Card, error) {
	var all []page.Card
	byMode := map[string]page.Card{}
	for _, way := range ways {
		c, err := s.card(ctx, s, way.name)
		if err != nil {
			return nil, nil, err
		}
		c.Title = way.name
		if places := s.code[way.name]; places != nil {
			c.Code, c.From = excerpt(places...)
		}
		all, byMode[way.name] = append(all, c), c
	}
	return all, byMode, nil
}

// count returns how many results of a kind the mode has, and of how many items.
func (s *stage) count(ctx context.Context, mode, result string) (n, items int, err error) {
	return countResults(ctx, s.books.db, s.run, mode, result)
}

func countResults(ctx context.Context, db *sql.DB, run, mode, result string) (n, items int, err error) {
	err = db.QueryRowContext(ctx, query("result_count"), run, mode, result).Scan(&n, &items)
	return n, items, err
}

// quiet returns how long no lock of the mode was released.
func (s *stage) quiet(mode string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.freed[mode]; ok {
		return time.Since(at)
	}
	return time.Since(s.began)
}

// close ends the actors, and removes what the scene has left in the database and in Redis.
func (s *stage) close() error {
	if s.end != nil {
		s.end()
	}
	s.starting.Lock()
	s.over = true
	s.starting.Unlock()
	s.mu.Lock()
	children := s.children
	s.mu.Unlock()
	for _, c := range children {
		_ = c.stdin.Close()
		_ = c.process.Resume() // a process that stands still does not notice the end of its input
	}
	for _, c := range children {
		select {
		case <-c.process.Exited():
		case <-time.After(3 * time.Second):
			_ = c.process.Kill()
			<-c.process.Exited()
		}
	}
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := s.failed
	if s.books != nil {
		for _, name := range []string{"documents_clear", "results_clear"} {
			_, err := s.books.db.Exec(query(name), s.run)
			errs = append(errs, err)
		}
		for _, way := range ways {
			errs = append(errs, s.books.clear(context.Background(), s.sku(way.name)))
		}
		errs = append(errs, s.books.close())
	}
	if s.redis != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, way := range ways {
			queue := actorConfig{Mode: way.name, Run: s.run}.queue()
			errs = append(errs, s.redis.SRem(ctx, "asynq:queues", queue).Err())
		}
		errs = append(errs, s.remove(ctx, "*"+s.run+"*"), s.redis.Close())
	}
	return errors.Join(errs...)
}
