package foreign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
)

// These are the peers that lock with libraries of Go. Their arguments are the ports of the
// servers.
var (
	redislockPeer = proc.Register("redislock", func(ports []string) {
		fmt.Println("ready redislock", version("github.com/bsm/redislock"))
		answerWith(newRedislock(ports), ports)
	})
	redsyncPeer = proc.Register("redsync", func(ports []string) {
		fmt.Println("ready redsync", version("github.com/go-redsync/redsync/v4"))
		answerWith(newRedsync(ports), ports)
	})
)

// version returns the version of a module in the go.mod file of the tests.
func version(module string) string {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		fail(err)
	}
	_, after, _ := strings.Cut(string(text), module+" v")
	v, _, _ := strings.Cut(after, "\n")
	return v
}

// locks are the locks of one library. The methods return errBusy and errLost. After any other
// error, the process ends.
type locks interface {
	lock(ctx context.Context, key string, ttl time.Duration, patient bool) error
	extend(ctx context.Context, key string, ttl time.Duration) error
	unlock(ctx context.Context, key string) error
}

var (
	errBusy = errors.New("busy")
	errLost = errors.New("lost")
)

// answerWith executes the commands of the test until the test ends.
func answerWith(l locks, ports []string) {
	log := clients(ports)[0]
	for {
		words := strings.Fields(proc.Listen())
		fmt.Println("answer", answer(l, log, words))
	}
}

func answer(l locks, log *redis.Client, words []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	key := words[1]
	switch words[0] {
	case "try":
		return resultText("held", l.lock(ctx, key, millis(words[2]), false))
	case "wait":
		return resultText("held", l.lock(ctx, key, millis(words[2]), true))
	case "extend":
		return resultText("extended", l.extend(ctx, key, millis(words[2])))
	case "unlock":
		return resultText("unlocked", l.unlock(ctx, key))
	case "visit":
		n, err := strconv.Atoi(words[3])
		for ; n > 0 && err == nil; n-- {
			err = visit(ctx, l, key, millis(words[2]), visitor{log, words[4], words[5]})
		}
		return resultText("visited", err)
	}
	return "unknown question"
}

// visitor writes its visits into a list on the server.
type visitor struct {
	redis *redis.Client
	log   string
	name  string
}

func (v visitor) note(ctx context.Context, what string) error {
	return v.redis.RPush(ctx, v.log, what+" "+v.name).Err()
}

func (v visitor) visit(ctx context.Context) error {
	if err := v.note(ctx, "in"); err != nil {
		return err
	}
	<-time.After(time.Millisecond)
	return v.note(ctx, "out")
}

// visit takes the lock, and makes one visit under it.
func visit(ctx context.Context, l locks, key string, ttl time.Duration, v visitor) error {
	if err := l.lock(ctx, key, ttl, true); err != nil {
		return err
	}
	if err := v.visit(ctx); err != nil {
		return err
	}
	return l.unlock(ctx, key)
}

func resultText(yes string, err error) string {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, errBusy), errors.Is(err, errLost):
		return err.Error()
	}
	fail(err)
	return ""
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func millis(text string) time.Duration {
	n, err := strconv.Atoi(text)
	if err != nil {
		fail(err)
	}
	return time.Duration(n) * time.Millisecond
}

func clients(ports []string) []*redis.Client {
	all := make([]*redis.Client, len(ports))
	for i, port := range ports {
		all[i] = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, ContextTimeoutEnabled: true})
	}
	return all
}

// redislocks are the locks of redislock.
type redislocks struct {
	client *redislock.Client
	held   map[string]*redislock.Lock
}

func newRedislock(ports []string) redislocks {
	return redislocks{redislock.New(clients(ports)[0]), make(map[string]*redislock.Lock)}
}

func (r redislocks) lock(ctx context.Context, key string, ttl time.Duration, patient bool) error {
	retry := redislock.NoRetry()
	if patient {
		retry = redislock.LinearBackoff(5 * time.Millisecond)
	}
	lock, err := r.client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry})
	if errors.Is(err, redislock.ErrNotObtained) {
		return errBusy
	}
	r.held[key] = lock
	return err
}

func (r redislocks) extend(ctx context.Context, key string, ttl time.Duration) error {
	err := r.held[key].Refresh(ctx, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return errLost
	}
	return err
}

func (r redislocks) unlock(ctx context.Context, key string) error {
	err := r.held[key].Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return errLost
	}
	return err
}

// redsyncs are the locks of redsync. The expiry of such a lock is an option of its mutex.
type redsyncs struct {
	sync *redsync.Redsync
	held map[string]*redsync.Mutex
}

func newRedsync(ports []string) redsyncs {
	var pools []redsyncredis.Pool
	for _, c := range clients(ports) {
		pools = append(pools, goredis.NewPool(c))
	}
	return redsyncs{redsync.New(pools...), make(map[string]*redsync.Mutex)}
}

func (r redsyncs) lock(ctx context.Context, key string, ttl time.Duration, patient bool) error {
	tries := 1
	if patient {
		tries = 1 << 30
	}
	pause := func(int) time.Duration { return 5 * time.Millisecond }
	m := r.sync.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(tries), redsync.WithRetryDelayFunc(pause))
	err := m.LockContext(ctx)
	if errors.Is(err, redsync.ErrFailed) || isTaken(err) {
		return errBusy
	}
	r.held[key] = m
	return err
}

func (r redsyncs) extend(ctx context.Context, key string, ttl time.Duration) error {
	old := r.held[key]
	m := r.sync.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithValue(old.Value()))
	ok, err := m.ExtendContext(ctx)
	if !ok {
		return lostUnlessBroken(err)
	}
	r.held[key] = m
	return nil
}

func (r redsyncs) unlock(ctx context.Context, key string) error {
	if ok, err := r.held[key].UnlockContext(ctx); !ok {
		return lostUnlessBroken(err)
	}
	return nil
}

// lostUnlessBroken returns errLost if err, the error of an extend or unlock, shows that the
// lock is lost. For another error, for example when a server did not answer, it returns err.
func lostUnlessBroken(err error) error {
	if err == nil || errors.Is(err, redsync.ErrExtendFailed) || errors.Is(err, redsync.ErrLockAlreadyExpired) || isTaken(err) {
		return errLost
	}
	return err
}

// isTaken reports whether another client holds the lock on enough servers.
func isTaken(err error) bool {
	var all *redsync.ErrTaken
	var one *redsync.ErrNodeTaken
	return errors.As(err, &all) || errors.As(err, &one)
}
