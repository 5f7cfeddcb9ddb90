package locker

// tokenState is what the server may have stored for a token that has no hold in this process:
//
//	state          the server may have                      at the end of the wait
//	tokenNowhere   nothing, now and later                   nothing is sent
//	tokenQueued    the token's entry in the queue, or the   the next caller of the process gets the
//	               lease of a grant whose message is still  ticket; without one a release is sent
//	               to be read
//	tokenPossible  an entry or a lease                      a release is sent
//	tokenUnclear   anything, and a call may still arrive    a release is sent that leaves a tombstone
//
// The states are ordered: at the end of the wait, each state requires at least what the states
// before it require.
type tokenState uint8

const (
	tokenNowhere tokenState = iota
	tokenQueued
	tokenPossible
	tokenUnclear
	tokenStates
)

// tokenEvent is an event that moves a token from one state to another.
type tokenEvent uint8

const (
	// Events that end a call.
	callNotSent tokenEvent = iota // the call was taken back before it was sent
	callRefused                   // a Refusal: the call had no effect
	// callLost: the call was abandoned, or its error does not prove that it had no effect.
	callLost
	answerQueued // the key is busy, and the token is in the queue
	answerAside  // the key is busy, and the token is in no queue
	// answerParts: the key is busy, and some nodes of the Store may hold the key for the token.
	answerParts
	answerGranted // a lease
	// answerOver: the answer is Undone, Revoked or Done, so the server has stored nothing for the
	// token.
	answerOver
	// Messages that the acquisition has read.
	readGrant
	readDone
	tokenEvents
)

// tokenMoves[event][state] is the state after the event, if the token was in state before the call
// or the message. An unclear token stays unclear, whatever the server answers to later calls,
// because the call without an answer may still arrive.
var tokenMoves = [tokenEvents][tokenStates]tokenState{
	//              from: nowhere      queued         possible       unclear
	callNotSent:   {tokenNowhere, tokenQueued, tokenPossible, tokenUnclear},
	callRefused:   {tokenNowhere, tokenPossible, tokenPossible, tokenUnclear}, // a restarted server has lost the queue
	callLost:      {tokenUnclear, tokenUnclear, tokenUnclear, tokenUnclear},
	answerQueued:  {tokenQueued, tokenQueued, tokenQueued, tokenUnclear},
	answerAside:   {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
	answerParts:   {tokenPossible, tokenPossible, tokenPossible, tokenUnclear},
	answerGranted: {tokenPossible, tokenPossible, tokenPossible, tokenUnclear},
	answerOver:    {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
	readGrant:     {tokenPossible, tokenPossible, tokenPossible, tokenUnclear}, // only this acquisition has read the grant
	readDone:      {tokenNowhere, tokenNowhere, tokenNowhere, tokenUnclear},
}

// token follows one token through its calls and messages.
type token struct {
	state    tokenState // while a call is under way: tokenUnclear
	previous tokenState // the state before the call that is under way, or before the last call
}

// ask begins a call with the token. It returns true if the server has stored nothing for the token
// before this call.
func (t *token) ask() (first bool) {
	t.state, t.previous = tokenUnclear, t.state
	return t.previous == tokenNowhere
}

// endCall ends the call that is under way, with the event e.
func (t *token) endCall(e tokenEvent) { t.state = tokenMoves[e][t.previous] }

// readMessage records the event e of a message that the acquisition has read while no call is under
// way.
func (t *token) readMessage(e tokenEvent) { t.state = tokenMoves[e][t.state] }
