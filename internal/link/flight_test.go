package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallsThatMeetTravelTogether(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.setDelay(time.Millisecond)
		var calls []*Call
		for i := range 5 {
			c := namedCall(fmt.Sprint(i), Ask)
			ls.Send(t.Context(), c)
			calls = append(calls, c)
		}
		for _, c := range calls {
			checkAnswered(t, c, 2*time.Millisecond)
		}
		if sent := f.sentFlights(); len(sent) != 2 || len(sent[0]) != 1 || len(sent[1]) != 4 {
			t.Errorf("the flights are %v", sent)
		}
	})
}

func TestAFlightTakesTheMostUrgentCallsAndSomeUndos(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		ls.Put(t.Context(), namedCall("first", Ask))
		synctest.Wait()
		for class, n := range []int{Renewal: 20, Release: 20, Ask: 200, Undo: 40} {
			for i := range n {
				ls.Put(t.Context(), namedCall(fmt.Sprint(class, i), Class(class)))
			}
		}
		f.resume()
		synctest.Wait()
		second := f.sentFlights()[1]
		count := func(class Class) (n int) {
			for _, name := range second {
				if name[0] == byte('0'+class) {
					n++
				}
			}
			return n
		}
		if len(second) != mostCalls || count(Renewal) != 20 || count(Release) != 20 || count(Undo) != undoCalls {
			t.Errorf("of %d calls %d are renewals, %d releases, %d undos", len(second), count(Renewal), count(Release), count(Undo))
		}
		if !slices.IsSortedFunc(second, func(a, b string) int { return int(a[0]) - int(b[0]) }) {
			t.Errorf("urgent calls stand behind others: %v", second)
		}
	})
}

func TestALongCommandLeavesRoomForNoOther(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.setDelay(time.Millisecond)
		ls.Put(t.Context(), namedCall("first", Ask))
		long := namedCall("long", Ask)
		long.Words = append(long.Words, string(make([]byte, mostBytes)))
		last := namedCall("last", Ask)
		ls.Put(t.Context(), long)
		ls.Put(t.Context(), last)
		checkAnswered(t, last, time.Second)
		if sent := f.sentFlights(); len(sent) != 3 {
			t.Errorf("the flights are %v", sent)
		}
	})
}

// A server executes a whole flight before it serves another client. So a flight to a near server
// has at most one large call.
func TestALargeCallTravelsWithoutAnotherOneToAServerThatIsNear(t *testing.T) {
	for _, tt := range []struct {
		trip    time.Duration
		flights int
	}{{100 * time.Microsecond, 3}, {2 * time.Millisecond, 2}} {
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.setDelay(tt.trip)
			makePrompt(t, ls)
			before := len(f.sentFlights())
			readLink(ls, func(l *link) bool { l.plain.usual = 1; return true })
			ls.Put(t.Context(), namedCall("first", Ask))
			for i := range 2 {
				large := namedCall(fmt.Sprint("large", i), Renewal)
				large.Words = append(large.Words, string(make([]byte, largeCall)))
				ls.Put(t.Context(), large)
			}
			small := namedCall("small", Ask)
			ls.Put(t.Context(), small)
			checkAnswered(t, small, time.Second)
			synctest.Wait()
			sent := f.sentFlights()[before:]
			if len(sent) != tt.flights || len(sent[1]) != 5-tt.flights {
				t.Errorf("over %v: the flights are %v", tt.trip, sent)
			}
		})
	}
}

func TestAFlightThatHangsDelaysOnlyItsOwnCalls(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		hangs := namedCall("hangs", Ask)
		ls.Put(t.Context(), hangs)
		synctest.Wait()
		began := time.Now()
		f.mu.Lock()
		held := f.stopped
		f.stopped = nil
		f.mu.Unlock()
		goesRound := namedCall("goes round", Ask)
		ls.Put(t.Context(), goesRound)
		checkAnswered(t, goesRound, promptWithin+time.Millisecond)
		checkFails(t, hangs, ErrNoAnswer, flightFor+windowLength-time.Since(began))
		after := namedCall("after", Ask) // the lane is free again, although the goroutine of the hung flight still hangs
		ls.Put(t.Context(), after)
		checkAnswered(t, after, time.Microsecond)
		close(held)
	})
}

func TestNoMoreThanSixteenFlightsGoRound(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		for i := range 200 { // these 200 calls begin within 800 ms
			ls.Put(t.Context(), namedCall(fmt.Sprint(i), Ask))
			time.Sleep(4 * time.Millisecond) //nolint:forbidigo // in a bubble
		}
		if f.mostTogether() > 16 || f.mostTogether() < 10 {
			t.Errorf("%d flights were under way at once", f.mostTogether())
		}
		f.resume()
	})
}

// While a node answers nothing for ten minutes and the client has no time-out, only a limited
// number of flights hang.
func TestFlightsThatHangAreBounded(t *testing.T) {
	for name, pipes := range map[string]bool{"pipelines": true, "a wrapper": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pipes, false, func(t *testing.T, f *fake, ls *Links) {
				f.stop()
				refused := 0
				for range 10 * 60 * 10 {
					c := namedCall("x", Ask)
					ls.Put(t.Context(), c)
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
					select {
					case <-done(c):
						if _, err := c.Answer(); errors.Is(err, ErrHangs) {
							refused++
						}
					default:
						c.Leave()
					}
				}
				if f.mostTogether() > mostHung+16 {
					t.Errorf("%d flights were under way at once", f.mostTogether())
				}
				if refused < 5000 {
					t.Errorf("only %d of 6000 calls were refused", refused)
				}
				f.resume()
				synctest.Wait()
				c := namedCall("well again", Ask)
				ls.Put(t.Context(), c)
				checkAnswered(t, c, time.Microsecond)
			})
		})
	}
}

func TestACallThatIsListedCanBeTakenBack(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		first, second := namedCall("first", Ask), namedCall("second", Ask)
		ls.Put(t.Context(), first)
		synctest.Wait()
		ls.Put(t.Context(), second)
		if second.Leave() {
			t.Error("a call that is listed counts as sent")
		}
		if !first.Leave() {
			t.Error("a call that is under way counts as not sent")
		}
		f.resume()
		synctest.Wait()
		if sent := f.sentFlights(); len(sent) != 1 {
			t.Errorf("what was sent is %v", sent)
		}
	})
}

func TestAnAnswerReachesItsOwnCallOrNobody(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		var work sync.WaitGroup
		for g := range 10 {
			work.Go(func() {
				for i := range 10000 {
					c := namedCall(fmt.Sprint(g, i), Ask)
					ls.Put(context.Background(), c)
					if i%2 == 0 { // every second caller leaves at the time when the answer comes
						c.Leave()
						continue
					}
					<-done(c)
					if text, err := c.Answer(); err != nil || text != c.Words[1] {
						t.Errorf("the answer to %v is %q, %v", c.Words[1], text, err)
					}
				}
			})
		}
		work.Wait()
	})
}

func TestALeaseCountsFromBeforeItsCallWasListed(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.setDelay(900 * time.Millisecond)
		ls.Put(t.Context(), namedCall("first", Ask))
		synctest.Wait()
		began := time.Now()
		readLink(ls, func(l *link) int { l.plain.most = 1; return 0 }) // so that no flight overtakes another flight
		c := namedCall("second", Renewal)
		ls.Put(t.Context(), c)
		checkAnswered(t, c, 2*time.Second)
		if !c.sent.Equal(began) {
			t.Errorf("the call counts from %v after it was listed", c.sent.Sub(began))
		}
	})
}

func TestMoreFlightsBeginAtOnceWhereTheWireIsLong(t *testing.T) {
	for trip, want := range map[time.Duration]int{50 * time.Microsecond: 1, 450 * time.Microsecond: 4, time.Second / 100: 8} {
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.setDelay(trip)
			first := namedCall("first", Ask)
			ls.Put(t.Context(), first)
			checkAnswered(t, first, time.Second)
			synctest.Wait() // now the link has noted the duration of the round trip
			for i := range 20 {
				ls.Put(t.Context(), namedCall(fmt.Sprint(i), Ask))
			}
			synctest.Wait()
			if n := readLink(ls, func(l *link) int { return l.plain.flying }); n != want {
				t.Errorf("at a round trip of %v, %d flights begin at once, not %d", trip, n, want)
			}
		})
	}
}

func TestTheRightValuesReachTheClient(t *testing.T) {
	type key struct{}
	bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
		mine := context.WithValue(t.Context(), key{}, "mine")
		s := ls.single.directs.windowAt(time.Now())
		ctx := s.withValues(mine)
		if ctx.Value(key{}) != "mine" {
			t.Error("the caller's values are lost")
		}
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		time.Sleep(directFor) //nolint:forbidigo // in a bubble
		if synctest.Wait(); child.Err() == nil {
			t.Error("a context that was derived does not end with its window")
		}
	})
}
