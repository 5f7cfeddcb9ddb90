package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// Half of the calls are at the server while the callers of the other half run.
func TestCallsThatMeetTravelInTwoBatches(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.setDelay(time.Millisecond)
		var calls []*Call
		for i := range 5 {
			calls = append(calls, namedCall(fmt.Sprint(i), Ask))
		}
		meet(t, ls, calls...)
		for _, c := range calls {
			checkAnswered(t, c, 2*time.Millisecond)
		}
		if sent := f.sentTogether(); len(sent) != 2 || len(sent[0]) != 3 || len(sent[1]) != 2 {
			t.Errorf("the batches are %v", sent)
		}
	})
}

// meet makes the calls wait for the next batch, which takes none of them before all wait.
func meet(t *testing.T, ls *Links, calls ...*Call) {
	t.Helper()
	ls.single.mu.Lock()
	defer ls.single.mu.Unlock()
	for _, c := range calls {
		c.markListed(t.Context(), time.Now())
		ls.single.plain.add(c)
	}
}

// A large call takes the place of a large call in its batch only if its caller still waits.
func TestALargeCallGoesAlsoAfterLargeCallsWhoseCallersHaveLeft(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		ls.Put(t.Context(), namedCall("first", Ask))
		synctest.Wait()
		var calls []*Call
		for i := range 4 {
			c := namedCall(fmt.Sprint(i), Ask)
			c.Words = append(c.Words, strings.Repeat("k", largeCall))
			ls.Put(t.Context(), c)
			calls = append(calls, c)
		}
		calls[0].Leave()
		calls[1].Leave()
		f.resume()
		for _, c := range calls[2:] {
			checkAnswered(t, c, time.Second)
		}
	})
}

func TestABatchTakesTheMostUrgentCallsAndSomeUndos(t *testing.T) {
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
		second := f.sentTogether()[1]
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
		long := namedCall("long", Ask)
		long.Words = append(long.Words, string(make([]byte, mostBytes)))
		last := namedCall("last", Ask)
		ls.Put(t.Context(), long)
		ls.Put(t.Context(), last)
		checkAnswered(t, last, time.Second)
		if sent := f.sentTogether(); len(sent) != 2 {
			t.Errorf("the batches are %v", sent)
		}
	})
}

// A server executes a whole batch before it serves another client. So a batch to a near server
// has at most one large call.
func TestALargeCallTravelsWithoutAnotherOneToAServerThatIsNear(t *testing.T) {
	for trip, want := range map[time.Duration]int{100 * time.Microsecond: 1, 2 * time.Millisecond: 2} {
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.setDelay(trip)
			makePrompt(t, ls)
			var calls []*Call
			for i := range 2 {
				large := namedCall("large", Renewal)
				large.Words = append(large.Words, string(make([]byte, largeCall)))
				calls = append(calls, large, namedCall(fmt.Sprint("small", i), Ask))
			}
			meet(t, ls, calls...)
			synctest.Wait()
			most := 0
			for _, batch := range f.sentTogether() {
				most = max(most, strings.Count(strings.Join(batch, " "), "large"))
			}
			if most != want {
				t.Errorf("over %v, a batch has %d large calls, not %d: %v", trip, most, want, f.sentTogether())
			}
		})
	}
}

func TestABatchThatHangsDelaysOnlyItsOwnCalls(t *testing.T) {
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
		checkFails(t, hangs, ErrNoAnswer, answerFor+sharedFor-time.Since(began))
		after := namedCall("after", Ask) // the way is free again, although the goroutine of the hung batch still hangs
		ls.Put(t.Context(), after)
		checkAnswered(t, after, time.Microsecond)
		close(held)
	})
}

func TestNoMoreThanSixteenBatchesAreActive(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.stop()
		for i := range 200 { // these 200 calls begin within 800 ms
			ls.Put(t.Context(), namedCall(fmt.Sprint(i), Ask))
			time.Sleep(4 * time.Millisecond) //nolint:forbidigo // in a bubble
		}
		if f.mostTogether() > 16 || f.mostTogether() < 10 {
			t.Errorf("%d batches were under way at once", f.mostTogether())
		}
		f.resume()
	})
}

// While a node answers nothing for ten minutes and the client has no time-out, only a limited
// number of batches hang.
func TestBatchesThatHangAreBounded(t *testing.T) {
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
					t.Errorf("%d batches were under way at once", f.mostTogether())
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
		if sent := f.sentTogether(); len(sent) != 1 {
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
		readLink(ls, func(l *link) int { l.plain.pipe = nil; return 0 }) // so that no batch overtakes another one
		c := namedCall("second", Renewal)
		ls.Put(t.Context(), c)
		checkAnswered(t, c, 2*time.Second)
		if !c.sent.Equal(began) {
			t.Errorf("the call counts from %v after it was listed", c.sent.Sub(began))
		}
	})
}

func TestMoreBatchesBeginAtOnceWhereTheWireIsLong(t *testing.T) {
	for trip, want := range map[time.Duration]int{50 * time.Microsecond: 2, 450 * time.Microsecond: 4, time.Second / 100: 8} {
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.setDelay(trip)
			first := namedCall("first", Ask)
			ls.Put(t.Context(), first)
			checkAnswered(t, first, time.Second)
			synctest.Wait() // now the link has noted the duration of the round trip
			for i := range 20 {
				ls.Put(t.Context(), namedCall(fmt.Sprint(i), Ask))
				synctest.Wait()
			}
			if n := readLink(ls, func(l *link) int { return l.plain.active }); n != want {
				t.Errorf("at a round trip of %v, %d batches begin at once, not %d", trip, n, want)
			}
		})
	}
}

func TestTheRightValuesReachTheClient(t *testing.T) {
	type key struct{}
	bubble(t, true, true, func(t *testing.T, _ *fake, ls *Links) {
		mine := context.WithValue(t.Context(), key{}, "mine")
		c := namedCall("x", Ask)
		c.markListed(mine, time.Now())
		batch := ls.single.brief.join(time.Now())
		ctx := c.within(batch)
		if ctx.Value(key{}) != "mine" {
			t.Error("the caller's values are lost")
		}
		if c.within(batch) == ctx {
			t.Error("two attempts to send a call share a context, which a hook may have kept")
		}
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		time.Sleep(aloneFor) //nolint:forbidigo // in a bubble
		if synctest.Wait(); child.Err() == nil {
			t.Error("a context that was derived does not end with its batch")
		}
	})
}

// holdFirst stops the fake for the commands that are under way, and lets later commands pass.
func holdFirst(f *fake) (held chan struct{}) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	held, f.stopped = f.stopped, nil
	return held
}

// A question over a dead connection is sent again over another one. Whoever gets the second answer
// knows that the first question may still arrive.
func TestAQuestionOverADeadConnectionIsAskedAgain(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.stop()
		question, release := namedCall("question", Ask), namedCall("release", Release)
		question.Repeatable = func(answer string) bool { return answer != "" }
		ls.Put(t.Context(), question)
		held := holdFirst(f)
		ls.Put(t.Context(), release)
		began := time.Now()
		checkAnswered(t, question, askAgainAfter+lookEvery)
		if took := time.Since(began); took < askAgainAfter || !question.Doubled() {
			t.Errorf("the answer came after %v, doubled: %t", took, question.Doubled())
		}
		checkAnswered(t, release, lookEvery) // over the connection that works
		again := namedCall("once", Ask)
		again.Repeatable = func(answer string) bool { return answer != "" }
		ls.Put(t.Context(), again)
		checkAnswered(t, again, promptWithin+lookEvery)
		if again.Doubled() {
			t.Error("a question that was answered at once counts as doubled")
		}
		close(held)
	})
}

// A refusal of one of two questions does not prove that the other one has no effect.
func TestAnErrorOfOneOfTwoQuestionsProvesNothing(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.stop()
		question := namedCall("question", Ask)
		question.Repeatable = func(answer string) bool { return answer != "" }
		ls.Put(t.Context(), question)
		time.Sleep(askAgainAfter + lookEvery) //nolint:forbidigo // in a bubble
		f.breakWith(replyError("LOADING"))
		if f.resume(); f.mostTogether() != 2 {
			t.Errorf("positive control: %d questions were under way", f.mostTogether())
		}
		<-done(question)
		var reply redis.Error
		if _, err := question.Answer(); errors.As(err, &reply) {
			t.Errorf("the question ended with %v, as if nothing could follow", err)
		}
	})
}

// While many batches hang, new calls are refused, and renewals are sent: their leases still have
// time. When half as many more hang, renewals are refused too.
func TestRenewalsAreSentWhileNewCallsAreRefused(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		ls.single.most = 10
		f.stop()
		refused := map[Class]int{}
		for _, class := range []Class{Ask, Renewal, Ask, Renewal} {
			for range 20 {
				c := namedCall("x", class)
				ls.Put(t.Context(), c)
				time.Sleep(answerFor + 2*lookEvery) //nolint:forbidigo // in a bubble
				<-done(c)
				if _, err := c.Answer(); errors.Is(err, ErrHangs) {
					refused[class]++
				}
			}
		}
		if n := readLink(ls, func(l *link) int { return l.hung }); n != 15 || refused[Ask] != 30 || refused[Renewal] != 35 {
			t.Errorf("%d batches hang; %d calls and %d renewals were refused", n, refused[Ask], refused[Renewal])
		}
		f.resume()
	})
}

// A late answer to a renewal saves the lease.
func TestARenewalWaitsForAsLongAsItsLeaseAllows(t *testing.T) {
	for patience, want := range map[time.Duration]time.Duration{
		0: answerFor, answerFor / 2: answerFor, 3 * time.Second: 3 * time.Second, time.Minute: mostPatience,
	} {
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.stop()
			renewal := namedCall("renewal", Renewal)
			renewal.Patience = patience
			began := time.Now()
			ls.Put(t.Context(), renewal)
			checkFails(t, renewal, ErrNoAnswer, want+lookEvery)
			if took := time.Since(began); took < want {
				t.Errorf("with a patience of %v, it was given up after %v", patience, took)
			}
			f.resume()
		})
		bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
			f.setDelay(want - lookEvery)
			renewal := namedCall("renewal", Renewal)
			renewal.Patience = patience
			ls.Put(t.Context(), renewal)
			checkAnswered(t, renewal, want)
		})
	}
}

// An error reply that came too late for its caller is remembered until a call succeeds.
func TestALateErrorReplyIsRemembered(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		loading := replyError("LOADING Redis is loading the dataset in memory")
		for _, broken := range []error{loading, nil} {
			f.breakWith(broken)
			f.setDelay(300 * time.Millisecond)
			c := namedCall("left", Ask)
			ls.Put(t.Context(), c)
			synctest.Wait()
			c.Leave()
			<-time.After(time.Second) // in the bubble
			if failure := ls.Failure("x"); failure != broken {
				t.Errorf("the failure is %v, want %v", failure, broken)
			}
		}
	})
}

// Whoever gets no answer learns why other calls had none.
func TestACallWithoutAnAnswerNamesTheLastFailure(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		f.breakWith(errNo)
		first := namedCall("first", Ask)
		ls.Put(t.Context(), first)
		checkFails(t, first, errNo, time.Microsecond)
		synctest.Wait()
		if failure := ls.Failure("x"); !errors.Is(failure, errNo) {
			t.Errorf("the failure is %v", failure)
		}
		f.breakWith(nil)
		f.stop()
		second := namedCall("second", Ask)
		ls.Put(t.Context(), second)
		checkFails(t, second, ErrNoAnswer, answerFor+lookEvery)
		if _, err := second.Answer(); errors.Is(err, errNo) || !strings.Contains(err.Error(), errNo.Error()) {
			t.Errorf("the second call ended with %v", err)
		}
		f.resume()
		synctest.Wait()
		if failure := ls.Failure("x"); failure != nil {
			t.Errorf("after an answer, the failure is %v", failure)
		}
	})
}

// The answer to a second call that does not hold for the first one is not the answer.
func TestOnlyAnAnswerThatHoldsForBothCallsCounts(t *testing.T) {
	bubble(t, true, false, func(t *testing.T, f *fake, ls *Links) {
		makePrompt(t, ls)
		f.stop()
		release := namedCall("not ours", Release)
		release.Repeatable = func(answer string) bool { return answer == "released" }
		ls.Put(t.Context(), release)
		held := holdFirst(f)
		checkFails(t, release, ErrNoAnswer, answerFor+lookEvery)
		if f.mostTogether() < 2 {
			t.Error("positive control: the release was not sent again")
		}
		close(held)
	})
}
