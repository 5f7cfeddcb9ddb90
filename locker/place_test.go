package locker

import (
	"fmt"
	"testing"
)

// A tokenWorld is one possible state of a token: what the server stores for it, and which calls
// and messages are still on their way.
type tokenWorld struct {
	server        uint8 // what the server has stored for the token
	message       uint8 // the message that the waiter has not read yet
	late          uint8 // the abandoned calls that may still arrive at the server
	callAbandoned bool  // a call was abandoned; the table need not show whether it has arrived
	call          uint8 // the call under way: none, sent, or 2 + the answer that is on its way
	workDone      bool  // the work is done: the server queues no token
}

const (
	hasNothing, hasEntry, hasLease = uint8(0), uint8(1), uint8(2)
	noMessage, grantUnread         = uint8(0), uint8(1)
	doneUnread                     = uint8(2)
	noCall, callSent, callAnswered = uint8(0), uint8(1), uint8(2)
)

// neededState returns the state whose step must follow in this world when the wait ends.
func (w tokenWorld) neededState() tokenState {
	switch {
	case w.callAbandoned:
		return tokenUnclear
	case w.server == hasEntry, w.server == hasLease && w.message == grantUnread:
		return tokenQueued
	case w.server == hasLease:
		return tokenPossible
	}
	return tokenNowhere
}

// afterAcquire returns the answers that the server can give to an acquire, and the world after each
// answer. The parameter queues is true if the acquire queues.
func (w tokenWorld) afterAcquire(queues bool) map[tokenEvent]tokenWorld {
	with := func(server uint8) tokenWorld {
		w := w
		w.server = server
		return w
	}
	switch {
	case w.workDone:
		return map[tokenEvent]tokenWorld{answerOver: with(hasNothing)}
	case w.server == hasLease && queues:
		return map[tokenEvent]tokenWorld{answerGranted: w}
	case w.server == hasEntry || queues: // the server may grant the key to the caller that asks
		return map[tokenEvent]tokenWorld{answerQueued: with(hasEntry), answerGranted: with(hasLease)}
	}
	return map[tokenEvent]tokenWorld{answerGranted: with(hasLease), answerAside: with(hasNothing), answerParts: with(hasLease)}
}

// tokenTruths are all worlds that are possible after what the caller has seen.
type tokenTruths map[tokenWorld]bool

// reachable returns these worlds and all worlds that the server can reach from them without the
// caller's knowledge.
func (ts tokenTruths) reachable(queues bool) tokenTruths {
	all, list := make(tokenTruths), make([]tokenWorld, 0, len(ts))
	add := func(w tokenWorld) {
		if !all[w] {
			all[w] = true
			list = append(list, w)
		}
	}
	for w := range ts {
		add(w)
	}
	for i := 0; i < len(list); i++ {
		w := list[i]
		if w.server == hasEntry {
			handed, over := w, w
			handed.server, handed.message = hasLease, grantUnread
			over.server, over.message, over.workDone = hasNothing, doneUnread, true
			add(handed)
			add(over)
		}
		if w.call == callSent {
			for answer, after := range w.afterAcquire(queues) {
				after.call = callAnswered + uint8(answer)
				add(after)
			}
		}
		if w.late > 0 {
			for _, after := range w.afterAcquire(queues) {
				after.late--
				add(after)
			}
		}
	}
	return all
}

// narrow returns the worlds that are still possible after the caller has seen an answer or a
// message. The function see returns the worlds that can follow a given world, or none if the
// answer or the message is impossible in that world.
func (ts tokenTruths) narrow(see func(tokenWorld) []tokenWorld) tokenTruths {
	left := make(tokenTruths)
	for w := range ts {
		for _, w := range see(w) {
			left[w] = true
		}
	}
	return left
}

// neededState returns the state whose step must follow at the end of the wait in any of these
// worlds, because the caller cannot know which of them is true.
func (ts tokenTruths) neededState() tokenState {
	seen := map[tokenState]bool{}
	for w := range ts {
		// If a message is unread and no call is lost, the next owner of the place will read
		// the message, so no step must follow in this world.
		if w.message != doneUnread || w.callAbandoned {
			seen[w.neededState()] = true
		}
	}
	for _, state := range []tokenState{tokenUnclear, tokenPossible} {
		if seen[state] {
			return state
		}
	}
	if len(seen) > 1 {
		return tokenPossible
	}
	if seen[tokenQueued] {
		return tokenQueued
	}
	return tokenNowhere
}

// tokenWalk goes through all orders of calls, answers, losses, refusals and messages.
type tokenWalk struct {
	failure string            // the first history after which the table is wrong; "": none
	covered map[[2]uint8]bool // the pairs of an event and the state in which the event has happened
	moves   [tokenEvents][tokenStates]tokenState
}

func (k *tokenWalk) walk(t token, ts tokenTruths, queues bool, asks int, history string) {
	if k.failure != "" {
		return
	}
	ts = ts.reachable(queues)
	if need := ts.neededState(); t.state != need {
		k.failure = fmt.Sprintf("%s: the table says %d, %d is needed", history, t.state, need)
		return
	}
	read := func(e tokenEvent, message uint8) {
		k.follow(e, t, t.state, ts.narrow(func(w tokenWorld) []tokenWorld {
			if w.message != message {
				return nil
			}
			w.message = noMessage
			return []tokenWorld{w}
		}), queues, asks, history+fmt.Sprint(" read", e))
	}
	read(readGrant, grantUnread)
	read(readDone, doneUnread)
	if asks == 0 {
		return
	}
	if !queues {
		k.walk(t, ts, true, asks, history+" queues")
	}
	asked := t
	asked.ask()
	sent := ts.narrow(func(w tokenWorld) []tokenWorld {
		w.call = callSent
		return []tokenWorld{w}
	}).reachable(queues)
	end := func(e tokenEvent, see func(tokenWorld) []tokenWorld) {
		k.follow(e, asked, asked.previous, sent.narrow(see), queues, asks-1, history+fmt.Sprint(" ask", e))
	}
	unsent := func(w tokenWorld) []tokenWorld {
		if w.call != callSent {
			return nil
		}
		w.call = noCall
		return []tokenWorld{w}
	}
	end(callNotSent, unsent)
	end(callRefused, func(w tokenWorld) []tokenWorld {
		forgot := unsent(w)
		for _, w := range forgot { // a server that refuses, because it loads its data, may have lost a part of it
			w.server = hasNothing
			forgot = append(forgot, w)
		}
		return forgot
	})
	end(callLost, func(w tokenWorld) []tokenWorld {
		if w.call == callSent {
			w.late++
		}
		w.call, w.callAbandoned = noCall, true
		return []tokenWorld{w}
	})
	for _, answer := range []tokenEvent{answerQueued, answerAside, answerParts, answerGranted, answerOver} {
		end(answer, func(w tokenWorld) []tokenWorld {
			if w.call != callAnswered+uint8(answer) {
				return nil
			}
			w.call = noCall
			return []tokenWorld{w}
		})
	}
}

// follow continues the tokenWalk after the event e, if e can happen in one of the worlds ts.
func (k *tokenWalk) follow(e tokenEvent, t token, from tokenState, ts tokenTruths, queues bool, asks int, history string) {
	if len(ts) > 0 {
		k.covered[[2]uint8{uint8(e), uint8(from)}] = true
		t.state = k.moves[e][from]
		k.walk(t, ts, queues, asks, history)
	}
}

func walkTokens(moves [tokenEvents][tokenStates]tokenState) *tokenWalk {
	k := &tokenWalk{covered: map[[2]uint8]bool{}, moves: moves}
	for _, queues := range []bool{false, true} {
		k.walk(token{}, tokenTruths{{}: true}, queues, 3, fmt.Sprint("queues=", queues))
	}
	return k
}

// The table tokenMoves is exact: after every sequence of events, its state requires what the
// possible worlds need, and no more. The test is not parallel, because a parallel test that
// waits for its turn is a goroutine of this package, and other tests check that no such
// goroutine is left.
func TestTheTableOfATokenIsExact(t *testing.T) {
	k := walkTokens(tokenMoves)
	if k.failure != "" {
		t.Fatal(k.failure)
	}
	t.Logf("%d pairs of a state and an event were met", len(k.covered))
	// Each entry of the table that the tokenWalk has used is necessary: with any other state in
	// its place, the tokenWalk finds an error.
	for pair := range k.covered {
		for state := range tokenStates {
			wrong := tokenMoves
			if wrong[pair[0]][pair[1]] == state {
				continue
			}
			wrong[pair[0]][pair[1]] = state
			if walkTokens(wrong).failure == "" {
				t.Errorf("event %d in state %d may as well lead to %d", pair[0], pair[1], state)
			}
		}
	}
}
