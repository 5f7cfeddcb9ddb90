package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ttl is the TTL of all keys that have one. Slow work takes longer.
const ttl = 100 * time.Millisecond

// A step is a way to lock. The function play lets clients A and B meet so that the way fails, and
// returns what happened.
type step struct {
	name string
	play func(s *stage) string
}

// A stage is a server for one step. The first error of a command ends the step.
type stage struct {
	step
	ctx   context.Context
	redis *redis.Client
	pass  func(time.Duration)
	key   string
	err   error
}

// note remembers the first error.
func (s *stage) note(err error) {
	if s.err == nil && err != nil && !errors.Is(err, redis.Nil) {
		s.err = err
	}
}

// setNX returns true if the key was free and has the value now.
func (s *stage) setNX(value string, ttl time.Duration) bool {
	ok, err := s.redis.SetNX(s.ctx, s.key, value, ttl).Result()
	s.note(err)
	return ok
}

func (s *stage) free() bool {
	n, err := s.redis.Exists(s.ctx, s.key).Result()
	s.note(err)
	return n == 0
}

func (s *stage) del() { s.note(s.redis.Del(s.ctx, s.key).Err()) }

// release deletes the key if it has the value.
func (s *stage) release(value string) bool {
	n, err := compareAndDelete.Run(s.ctx, s.redis, []string{s.key}, value).Int()
	s.note(err)
	return n == 1
}

// compareAndDelete is the usual script for a release.
var compareAndDelete = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)

var steps = []step{
	{"GET, then SET", func(s *stage) string {
		a, b := s.free(), s.free() // both look before either of them writes
		s.note(s.redis.Set(s.ctx, s.key, "A", 0).Err())
		s.note(s.redis.Set(s.ctx, s.key, "B", 0).Err())
		return fmt.Sprintf("A found it free: %v. B found it free: %v. Two holders.", a, b)
	}},
	{"SETNX, then DEL", func(s *stage) string {
		s.setNX("A", 0) // and A crashes
		s.pass(time.Hour)
		return fmt.Sprintf("A crashed. An hour later B gets it: %v. The key stays for ever.", s.setNX("B", 0))
	}},
	{"SETNX, then EXPIRE", func(s *stage) string {
		s.setNX("A", 0) // and A crashes before its EXPIRE
		s.pass(time.Hour)
		left, err := s.redis.TTL(s.ctx, s.key).Result()
		s.note(err)
		return fmt.Sprintf("A crashed before EXPIRE. The TTL an hour later: %d, which is none.", left)
	}},
	{"a waiter repairs a missing TTL", func(s *stage) string {
		s.setNX("A", 0)
		s.note(s.redis.PExpire(s.ctx, s.key, ttl).Err()) // B means to repair; A is alive and slow
		s.pass(2 * ttl)
		return fmt.Sprintf("A still works. C gets it: %v. The repair ended a living lock.", s.setNX("C", 0))
	}},
	{"SETNX with the expiry time as the value", func(s *stage) string {
		now := time.Unix(1000, 0)
		s.setNX(fmt.Sprint(now.Add(30*time.Second).Unix()), 0) // A, by its own clock
		value, err := s.redis.Get(s.ctx, s.key).Int64()
		s.note(err)
		clockOfB := now.Add(40 * time.Second) // at the same moment
		return fmt.Sprintf("The clock of B is 40 s ahead. B finds it expired: %v. Two holders.", value < clockOfB.Unix())
	}},
	{"SET NX PX, then DEL", func(s *stage) string {
		s.setNX("A", ttl)
		s.pass(2 * ttl) // A is slow
		b := s.setNX("B", ttl)
		s.del() // A has finished
		return fmt.Sprintf("A was slow. B gets it: %v. A deletes B's key. C gets it: %v. Two holders.", b, s.setNX("C", ttl))
	}},
	{"SET NX PX with a token, compare and delete in Lua", func(s *stage) string {
		s.setNX("token A", ttl)
		s.pass(2 * ttl) // A is slow, and nobody renews its lease
		b := s.setNX("token B", ttl)
		return fmt.Sprintf("A was slow. B gets it: %v, and A is not told. A learns of it at its release: %v.", b, !s.release("token A"))
	}},
	{"the same, and a watchdog that renews", func(s *stage) string {
		s.setNX("token A", ttl)
		s.pass(2 * ttl) // the process of A is paused, with its watchdog
		b := s.setNX("token B", ttl)
		s.note(s.redis.Set(s.ctx, s.key+":data", "written by B", 0).Err())
		s.note(s.redis.Set(s.ctx, s.key+":data", "written by A", 0).Err()) // A runs again, in the middle of its work
		data, err := s.redis.Get(s.ctx, s.key+":data").Result()
		s.note(err)
		return fmt.Sprintf("A was paused. B gets it: %v. The data at the end: %s, who is stale.", b, data)
	}},
	{"token:count in the value, to enter again", func(s *stage) string {
		s.setNX("A:1", ttl)
		s.note(s.redis.Set(s.ctx, s.key, "A:2", 0).Err()) // enters again: a plain SET, which removes the TTL
		s.note(s.redis.Set(s.ctx, s.key, "A:1", 0).Err()) // leaves once, and crashes
		s.pass(time.Hour)
		return fmt.Sprintf("A crashed inside. An hour later B gets it: %v. The second entry removed the TTL.", s.setNX("B:1", ttl))
	}},
	{"a counter of readers and a write key", func(s *stage) string {
		s.note(s.redis.Incr(s.ctx, s.key+":readers").Err()) // a reader, which crashes
		s.pass(time.Hour)
		n, err := s.redis.Get(s.ctx, s.key+":readers").Int()
		s.note(err)
		return fmt.Sprintf("A reader crashed. The readers an hour later: %d. No writer enters again.", n)
	}},
	{"a lost reply", func(s *stage) string {
		s.setNX("token A", time.Hour) // the server executes it, and the reply is lost
		return fmt.Sprintf("A reports an error and goes. B gets it: %v, for the whole TTL.", s.setNX("token B", ttl))
	}},
	{"a master that dies before it replicates", func(s *stage) string {
		s.setNX("token A", time.Hour)
		s.del() // the promoted replica has never seen the key
		return fmt.Sprintf("A works. B gets it from the new master: %v. Two holders.", s.setNX("token B", time.Hour))
	}},
}
