package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// node is a server in a bubble. It answers ECHO, and sometimes does what its faults say.
type node struct {
	mu      sync.Mutex
	rng     *rand.Rand
	delay   time.Duration // how long a command takes
	faults  bool
	lies    bool // answers calls with the answers to other calls, which a client cannot know
	dials   int
	refused int // how many of the next dials fail
	open    int // connections that were not closed by the client
	seen    map[string]int
	hits    map[string]int // the faults that were injected
}

// dial connects to the node.
func (n *node) dial(context.Context) (net.Conn, func(), error) {
	time.Sleep(time.Millisecond) //nolint:forbidigo // in a bubble: meanwhile, all callers of a round list their calls
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if n.refused > 0 || n.faults && n.rng.IntN(8) == 0 {
		n.refused--
		return nil, nil, &net.OpError{Op: "dial", Err: errNo}
	}
	n.open++
	client, server := net.Pipe()
	go n.serve(server)
	hangUp := func() {
		_ = client.Close()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open--
	}
	return client, hangUp, nil
}

// fault returns what happens to the next command.
func (n *node) fault(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !isMarker(name) {
		n.seen[name]++
	}
	if !n.faults {
		return ""
	}
	kinds := []string{"stall", "cut", "reset", "late", "push", "error", "noise", "drop", "repeat"}
	if kind := n.rng.IntN(100); kind < len(kinds) {
		n.hits[kinds[kind]]++
		return kinds[kind]
	}
	return ""
}

// isMarker reports whether the name, which a command echoes, is the marker behind a call.
func isMarker(name string) bool { return len(name) == 8 && !strings.ContainsAny(name, "-.") }

func (n *node) serve(c net.Conn) {
	defer c.Close()
	in, last := bufio.NewReaderSize(c, 64<<10), ""
	for {
		name, err := readEcho(in)
		if err != nil {
			return
		}
		n.mu.Lock()
		delay := n.delay
		n.mu.Unlock()
		time.Sleep(delay) //nolint:forbidigo // in a bubble
		if n.lies && !isMarker(name) {
			name, last = last, name
		}
		reply := fmt.Sprintf("$%d\r\n%s\r\n", len(name), name)
		switch n.fault(name) {
		case "stall":
			time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		case "cut":
			_, _ = io.WriteString(c, reply[:len(reply)/2])
			return
		case "reset":
			return
		case "late":
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
		case "push":
			reply = "|1\r\n+ttl\r\n:3\r\n>2\r\n$7\r\nmessage\r\n*1\r\n:1\r\n" + reply
		case "error":
			reply = "-ERR " + name + "\r\n"
		case "noise":
			reply += "?\r\n"
		case "drop":
			reply = ""
		case "repeat":
			reply += reply
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

// readEcho reads a command of two words, and returns the second.
func readEcho(in *bufio.Reader) (string, error) {
	var lines [5]string
	for i := range lines {
		line, err := in.ReadString('\n')
		if err != nil {
			return "", err
		}
		lines[i] = strings.TrimSpace(line)
	}
	if n, err := strconv.Atoi(lines[3][1:]); err != nil || lines[0] != "*2" || n != len(lines[4]) {
		return "", fmt.Errorf("no echo: %q", lines)
	}
	return lines[4], nil
}

// duplexBubble runs a test with Links whose calls go to n by a duplex. At the end it checks that
// Close leaves no connection.
func duplexBubble(t *testing.T, n *node, test func(t *testing.T, ls *Links)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n.seen, n.hits = map[string]int{}, map[string]int{}
		ls := New(&fake{}, Options{})
		l := ls.single
		l.pipe, l.plain.pipe = piped{}, piped{}
		l.duplex = &duplex{link: l, dial: n.dial}
		test(t, ls)
		if err := ls.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		synctest.Wait()
		if n.open != 0 {
			t.Errorf("%d connections are left", n.open)
		}
		time.Sleep(3 * time.Second) //nolint:forbidigo // in a bubble: stalled servers end
	})
}

// crowd lets callers make calls at random times, by all ways, and leave at any time. It returns how
// many calls had their own answer, and how many another answer. Each call must end within limit.
func crowd(t *testing.T, ls *Links, seed uint64, callers, rounds int, limit time.Duration) (own, wrong int) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for round := range rounds {
				if rng.IntN(2) == 0 {
					time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Millisecond)))) //nolint:forbidigo // in a bubble
				}
				name := fmt.Sprint(i, "-", round)
				if rng.IntN(8) == 0 {
					name += strings.Repeat(".", largeCall)
				}
				c := namedCall(name, Class(rng.IntN(int(classes))))
				began := time.Now()
				switch rng.IntN(5) {
				case 0:
					ls.Put(t.Context(), c)
				default:
					ls.Send(t.Context(), c)
				}
				patience := limit
				if rng.IntN(4) == 0 {
					patience = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
				}
				select {
				case <-done(c):
					text, err := c.Answer()
					mu.Lock()
					if err == nil && text == c.Words[1] {
						own++
					} else if err == nil {
						wrong++
					}
					mu.Unlock()
				case <-time.After(patience):
					if c.Leave(); patience == limit {
						t.Errorf("seed %d: the call %v has no end after %v", seed, c.Words[1], time.Since(began))
					}
				}
			}
		})
	}
	work.Wait()
	return own, wrong
}

// Whatever a server and a connection do, and whenever callers leave: each call is executed at most
// once, and each caller gets its own answer or an error, in time.
func TestEachCallerGetsItsOwnAnswerOrAnError(t *testing.T) {
	t.Parallel()
	hits := map[string]int{}
	for seed := range uint64(40) {
		n := &node{faults: true, rng: rand.New(rand.NewPCG(seed, 1)), delay: time.Duration(seed%3) * 50 * time.Microsecond}
		duplexBubble(t, n, func(t *testing.T, ls *Links) {
			own, wrong := crowd(t, ls, seed, 1+int(seed)%24, 40, 4*time.Second)
			if wrong > 0 || own == 0 {
				t.Errorf("seed %d: %d own answers, %d wrong ones", seed, own, wrong)
			}
		})
		for name, times := range n.seen {
			if times > 1 {
				t.Errorf("seed %d: %s was sent %d times", seed, name, times)
			}
		}
		for kind, times := range n.hits {
			hits[kind] += times
		}
	}
	if len(hits) != 9 {
		t.Errorf("not all faults were injected: %v", hits)
	}
	t.Run("positive control", func(t *testing.T) {
		duplexBubble(t, &node{lies: true}, func(t *testing.T, ls *Links) {
			if _, wrong := crowd(t, ls, 1, 8, 10, 4*time.Second); wrong == 0 {
				t.Error("wrong answers are not noticed")
			}
		})
	})
}

// No caller sleeps while nobody reads its answer or writes its call. Otherwise, only the watch
// would end the call, after 200 ms.
func TestNoCallerSleepsWithoutAReader(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		n := &node{delay: time.Duration(seed%4) * 20 * time.Microsecond}
		duplexBubble(t, n, func(t *testing.T, ls *Links) {
			crowd(t, ls, seed, 1+int(seed)%24, 100, 150*time.Millisecond)
		})
		if n.dials != 1 {
			t.Errorf("seed %d: %d connections", seed, n.dials)
		}
	}
}

// A caller that reads answers for others is back when its own answer is late, and the others lose
// nothing by that.
func TestACallerThatReadsIsBackWithin250Milliseconds(t *testing.T) {
	t.Parallel()
	n := &node{}
	duplexBubble(t, n, func(t *testing.T, ls *Links) {
		warm := namedCall("warm", Ask)
		ls.Put(t.Context(), warm)
		checkAnswered(t, warm, time.Second)
		n.mu.Lock()
		n.delay = time.Second
		n.mu.Unlock()
		stalled, behind := namedCall("stalled", Ask), namedCall("behind", Renewal)
		began := time.Now()
		ls.Send(t.Context(), stalled)
		if took := time.Since(began); took > 250*time.Millisecond {
			t.Errorf("the caller is back after %v", took)
		}
		checkFails(t, stalled, ErrNoAnswer, 0)
		n.mu.Lock()
		n.delay = 0
		n.mu.Unlock()
		ls.Put(t.Context(), behind) // goes by another connection
		checkAnswered(t, behind, 50*time.Millisecond)
	})
	if n.dials != 2 {
		t.Errorf("%d connections", n.dials)
	}
}

// Renewals of many leases that are due together do not delay a call behind them, also when the node
// is far away.
func TestLargeCallsDoNotDelayACallAtAFarNode(t *testing.T) {
	t.Parallel()
	n := &node{delay: time.Millisecond}
	duplexBubble(t, n, func(t *testing.T, ls *Links) {
		warm := namedCall("warm", Ask)
		ls.Put(t.Context(), warm)
		checkAnswered(t, warm, time.Second) // a call and its marker take 2 ms
		var renewals []*Call
		for i := range 12 {
			renewals = append(renewals, namedCall(fmt.Sprint(i, strings.Repeat(".", largeCall)), Renewal))
			ls.Put(t.Context(), renewals[i])
		}
		synctest.Wait()
		small := namedCall("small", Ask)
		ls.Put(t.Context(), small)
		checkAnswered(t, small, 15*time.Millisecond)
		for _, c := range renewals {
			checkAnswered(t, c, 50*time.Millisecond)
		}
	})
}

// A pause of the process costs no connection, also if an answer was nearly overdue long ago.
func TestAPauseAfterALateAnswerCostsNoConnection(t *testing.T) {
	t.Parallel()
	n := &node{}
	duplexBubble(t, n, func(t *testing.T, ls *Links) {
		d, delay := ls.single.duplex, func(delay time.Duration) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.delay = delay
		}
		warm, late, after := namedCall("warm", Ask), namedCall("late", Ask), namedCall("after", Ask)
		ls.Put(t.Context(), warm)
		checkAnswered(t, warm, time.Second)
		delay(90 * time.Millisecond) // of the call, and of its marker
		ls.Put(t.Context(), late)
		checkAnswered(t, late, 200*time.Millisecond)
		if !readLink(ls, func(*link) bool { return d.wire.overdue }) {
			t.Fatal("no look has found the answer nearly overdue")
		}
		time.Sleep(2 * watchEvery) //nolint:forbidigo // in a bubble: the watch has looked again
		delay(5 * time.Millisecond)
		ls.Put(t.Context(), after)
		synctest.Wait()
		readLink(ls, func(*link) bool {
			d.wire.slots[d.wire.head].sent = time.Now().Add(-time.Second) // the process has paused
			return true
		})
		d.look()
		checkAnswered(t, after, 50*time.Millisecond)
	})
	if n.dials != 1 {
		t.Errorf("%d connections", n.dials)
	}
}

// When a receiver panics on the goroutine of a caller that reads, the connection is given up, so
// that no other call waits for a reader.
func TestAPanicOfAReaderLosesNoRole(t *testing.T) {
	t.Parallel()
	n := &node{}
	duplexBubble(t, n, func(t *testing.T, ls *Links) {
		warm := namedCall("warm", Ask)
		ls.Put(t.Context(), warm)
		checkAnswered(t, warm, time.Second)
		synctest.Wait()
		bad := &Call{Words: []any{"echo", "bad"}, Receiver: OnAnswer(func(*Call) { panic("observer") })}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("positive control: the receiver did not panic")
				}
			}()
			ls.Send(t.Context(), bad)
		}()
		after := namedCall("after", Ask)
		ls.Send(t.Context(), after)
		checkAnswered(t, after, 50*time.Millisecond)
	})
}

// While no connection can be made, one attempt serves all callers, and a refusal proves that the
// call was not sent.
func TestOneDialServesAllCallers(t *testing.T) {
	t.Parallel()
	n := &node{refused: 3}
	duplexBubble(t, n, func(t *testing.T, ls *Links) {
		for range 3 {
			var calls []*Call
			for i := range 50 {
				calls = append(calls, namedCall(fmt.Sprint("lost", i), Ask))
				ls.Send(t.Context(), calls[i])
			}
			for _, c := range calls {
				checkFails(t, c, ErrNotConnected, 2*longestPause)
			}
		}
		back := namedCall("back", Ask)
		ls.Send(t.Context(), back)
		checkAnswered(t, back, 2*longestPause)
	})
	if n.dials != 4 || len(n.seen) != 1 {
		t.Errorf("%d attempts, calls sent: %v", n.dials, n.seen)
	}
}

// The parts of a reply may come in any pieces. What is no reply is noticed.
func FuzzReplies(f *testing.F) {
	for _, text := range []string{
		"$5\r\nhello\r\n", "+OK\r\n", ":7\r\n", "$-1\r\n", "_\r\n", "-ERR no\r\n", "!6\r\nERR no\r\n", "=7\r\ntxt:abc\r\n",
		"*2\r\n:1\r\n$1\r\na\r\n", ">2\r\n+x\r\n+y\r\n", "|1\r\n+a\r\n:1\r\n", "%1\r\n+a\r\n*0\r\n", "*-1\r\n", "$3\r\nab", "hello\r\n", "$99999999999\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, size, err := parseReply(b)
		if size > len(b) || size > 0 && err != nil {
			t.Fatalf("%d of %d bytes, %v", size, len(b), err)
		}
		for end := range size {
			if _, n, err := parseReply(b[:end]); n != 0 || err != nil {
				t.Fatalf("%q is a reply of %d bytes (%v), but the whole is %q", b[:end], n, err, b[:size])
			}
		}
		if again, n, _ := parseReply(append(b[:size:size], "+more\r\n"...)); size > 0 && (n != size || again.text != whole.text) {
			t.Fatalf("%q is read as %q and as %q", b, whole.text, again.text)
		}
	})
}

func TestReplies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"$5\r\nhello\r\n": "hello", "$0\r\n\r\n": "", "+OK\r\n": "OK", ":-7\r\n": "-7", "=7\r\ntxt:abc\r\n": "abc", "$6\r\na\r\nb\r\n\r\n": "a\r\nb\r\n",
	} {
		if r, size, err := parseReply([]byte(text)); r.text != want || size != len(text) || err != nil || r.err != nil {
			t.Errorf("%q is read as %q (%v), %d bytes, %v", text, r.text, r.err, size, err)
		}
	}
	for _, text := range []string{"-MOVED 1 h:1\r\n", "!9\r\nREADONLY \r\n", "$-1\r\n", "_\r\n", "*-1\r\n", "*1\r\n:1\r\n"} {
		if r, size, err := parseReply([]byte(text)); r.err == nil || size != len(text) || err != nil {
			t.Errorf("%q is read as %q, %d bytes, %v", text, r.text, size, err)
		}
	}
	for _, text := range []string{"hello\r\n", "$x\r\n", "$-2\r\n", "\r\n", strings.Repeat("*1\r\n", 1000)} {
		if _, _, err := parseReply([]byte(text)); !errors.Is(err, errProtocol) {
			t.Errorf("%q is no reply: %v", text, err)
		}
	}
}
