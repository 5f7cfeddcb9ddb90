package main

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"
)

// will is the specification of two processes: the first one holds locks until it is killed, and
// the second one, the heir, waits for these locks.
type will struct {
	Contestant string
	Settings   settings
	Keys       int
}

func willKey(i int) string { return "left:" + strconv.Itoa(i) }

// expiryGap is the time between the expiries of successive leases, so that the waiters do not
// compete.
const expiryGap = 50 * time.Millisecond

func holderPart(s *stage) error {
	w, l, err := openWill(s)
	if err != nil {
		return err
	}
	for i := range w.Keys {
		if _, err := l.Lock(context.Background(), willKey(i)); err != nil {
			return err
		}
		time.Sleep(expiryGap)
	}
	s.say("held", nil)
	s.await() // the parent kills this process while it waits here
	return nil
}

// longestHeirWait returns the time after which the heir stops waiting. Each lock becomes free
// long before.
func (w will) longestHeirWait() time.Duration { return 3*w.Settings.TTL + 5*time.Second }

// heirPart waits for all keys at the same time. For each key, it reports the time at which it
// got the key, or 0 if it never got the key.
func heirPart(s *stage) error {
	w, l, err := openWill(s)
	if err != nil {
		return err
	}
	had := make([]time.Duration, w.Keys)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(w.longestHeirWait(), cancel).Stop()
	waiting := make(chan error, 1)
	go func() {
		waiting <- together(w.Keys, func(i int) error {
			_, err := l.Lock(ctx, willKey(i))
			if err == nil {
				had[i] = monotonic()
			} else if ctx.Err() != nil {
				err = nil
			}
			return err
		})
	}()
	select {
	case err := <-waiting:
		return cmp.Or(err, errors.New("nobody had to wait"))
	case <-time.After(3 * expiryGap): // until then, all callers have asked for their locks and wait
	}
	s.say("waiting", nil)
	if err := <-waiting; err != nil {
		return err
	}
	s.say("had", had)
	return nil
}

func openWill(s *stage) (w will, l locks, err error) {
	if err := s.read(&w); err != nil {
		return w, nil, err
	}
	c, err := contestantNamed(w.Contestant)
	if err != nil {
		return w, nil, err
	}
	if l, err = c.open(w.Settings); err != nil {
		return w, nil, err
	}
	return w, l, warmUp(l, w.Keys)
}
