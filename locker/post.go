package locker

import (
	"context"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// post brings the events of a [Notifier] to the waiters that they concern. A message about a
// grant may come before the acquire is answered, after a repeated acquire has found the grant, or
// after the caller has left. So post knows a token from before its first queued acquire until the
// end of its hold. An event about a token
//
//	that waits                         goes to its waiter
//	that holds, or is being released   is ignored: a repeated acquire has taken the lease before the message came
//	that is unknown                    is a grant that no caller will use: it is released
type post struct {
	engine   *Engine
	notifier store.Notifier // nil: the Store is no Notifier
	silence  func()
	resets   sync.Map // the inboxes of which a Reset is under way

	mu    sync.Mutex
	boxes map[string]*mailbox // the mailboxes by token; a mailbox is nil if the token holds the key
}

// mailbox has the events that a waiter has not read yet.
type mailbox struct {
	key   string
	inbox string
	bell  chan struct{} // signalled with each event
	news  news          // the post's mutex guards news and writer
	// writer is true if a writer waits for the end of the phase to which the token belongs. It is
	// not a part of news, because it stays true after the news was read.
	writer bool
}

// news summarizes the events that came since the waiter last read the mailbox.
type news struct {
	granted   bool
	grant     store.Event
	workDone  bool
	isHead    bool
	freeBy    time.Time // if isHead is true: when the key is free at the latest
	maybeFree bool      // the key may be free
	reopened  bool      // events may have been lost
}

func (p *post) init(e *Engine) {
	p.engine = e
	p.boxes = make(map[string]*mailbox)
	if p.notifier = e.can.Notifier; p.notifier != nil {
		p.silence = p.notifier.Listen(p.notify)
	}
}

// stop ends the Notifier's events. It returns a channel that is closed when no more events come.
func (p *post) stop() <-chan struct{} {
	silent := make(chan struct{})
	if p.silence == nil {
		close(silent)
		return silent
	}
	go func() {
		defer close(silent)
		p.silence()
	}()
	return silent
}

// inbox returns the name of this process's inbox for key, or "" when there is no subscription.
func (p *post) inbox(key string) string {
	if p.notifier == nil {
		return ""
	}
	return p.notifier.Inbox(key)
}

// open subscribes for key in the background, and calls done with the inbox or an error.
func (p *post) open(key string, done func(inbox string, err error)) {
	p.engine.calls.Do(func() {
		ctx, cancel := context.WithTimeout(p.engine.background, calls.Timeout)
		defer cancel()
		done(p.notifier.Open(ctx, key))
	})
}

// resubscribe is called when the server has answered that inbox has no subscriber. It does not wait
// for the Reset, because a Reset may wait for a connection. If another Reset of this inbox is under
// way, it does nothing, because the waiter asks again and gets the same answer.
func (p *post) resubscribe(inbox string) {
	if _, underWay := p.resets.LoadOrStore(inbox, true); underWay {
		return
	}
	p.engine.calls.Do(func() {
		defer p.resets.Delete(inbox)
		p.notifier.Reset(inbox)
	})
}

// register makes box receive the events about token.
func (p *post) register(token string, box *mailbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	box.news, box.writer, box.bell = news{}, false, make(chan struct{}, 1) // without the events of the previous token
	p.boxes[token] = box
}

// ignore is called when token holds the key. It makes the post drop all further events about token.
// It returns true if a writer waits for the end of the phase in which token reads.
func (p *post) ignore(token string) (writer bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	box := p.boxes[token]
	p.boxes[token] = nil
	return box != nil && box.writer
}

// unregister forgets a token that neither waits nor holds.
func (p *post) unregister(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.boxes, token)
}

// forget is called when the hold h has ended.
func (p *post) forget(h *hold) {
	if h.posted {
		p.unregister(h.claim.Owner)
	}
}

// takeNews removes the news from box and returns it.
func (p *post) takeNews(box *mailbox) news {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := box.news
	box.news = news{}
	return n
}

// grantIn returns the grant in box, and whether there is one.
func (p *post) grantIn(box *mailbox) (store.Event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return box.news.grant, box.news.granted && !box.news.reopened
}

// notify receives e, an event of the Notifier.
func (p *post) notify(e store.Event) {
	p.deliver(e)
	switch e.Kind {
	case store.EventReopened:
		// The readers may have missed the event of a writer. A renewal also reports a writer.
		p.engine.keeper.renewReaders(e.Inbox)
	case store.EventWriter:
		// This call comes after deliver: if the cohorts do not know the hold yet, the reader finds
		// the event in its mailbox.
		p.engine.cohorts.noteWriter(e.Owner)
	default:
	}
}

// deliver puts the event e into the boxes of the tokens that it concerns.
func (p *post) deliver(e store.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Kind == store.EventFree || e.Kind == store.EventReopened {
		for _, box := range p.boxes {
			if box != nil && (e.Key == "" || e.Key == box.key) && (e.Inbox == "" || e.Inbox == box.inbox) {
				box.news.maybeFree = box.news.maybeFree || e.Kind == store.EventFree
				box.news.reopened = box.news.reopened || e.Kind == store.EventReopened
				box.ring()
			}
		}
		return
	}
	box, known := p.boxes[e.Owner]
	switch {
	case !known && e.Kind == store.EventGranted:
		// Without this release, the lease would run out only after e.HandoffTTL. With this release,
		// the key goes to the next waiter at once.
		p.engine.undo(calls.Chore{Claim: store.Claim{Key: e.Key, Owner: e.Owner, Inbox: p.inbox(e.Key)}, Useless: time.Now().Add(e.HandoffTTL)})
	case box == nil: // the token holds the key already, or is unknown
	default:
		switch e.Kind {
		case store.EventWriter:
			box.writer = true
			return // the event changes nothing for a caller that still waits
		case store.EventGranted:
			box.news.granted, box.news.grant = true, e
		case store.EventDone:
			box.news.workDone = true
		case store.EventHead:
			box.news.isHead, box.news.freeBy = true, time.Now().Add(e.HandoffTTL)
		default: // an event of an unknown kind: asking again does no harm
			box.news.maybeFree = true
		}
		box.ring()
	}
}

// ring signals the waiter.
func (b *mailbox) ring() {
	select {
	case b.bell <- struct{}{}:
	default: // the channel bell contains a signal already
	}
}
