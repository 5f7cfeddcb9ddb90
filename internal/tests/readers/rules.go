package readers

// Rule is a rule of the protocol that can be left out.
type Rule int

// Rules of readers and writers. The comment beside a rule describes the wrong behaviour when the
// rule is switched off.
const (
	WaitBehindWriters  Rule = iota + 1 // a reader enters an open phase although a writer waits
	ReadersAfterWriter                 // after a writer, the first waiter gets the key, even if this waiter is a writer and readers wait
	WriterAfterReaders                 // after the last reader all waiting readers enter, even readers behind a writer
	Together                           // after a writer only the first reader enters
	OwnExpiry                          // a reader that does not renew counts until the lease ends
	LastReader                         // the lease is not shortened when the reader with the latest end leaves
	EntryPerToken                      // a reader that asks again is counted twice
	NewPhase                           // readers of an earlier phase count in the next phase
	ComparePhase                       // a renewal does not check in which phase its reader reads
	OnlyLengthen                       // a renewal may make a reader's lease shorter
	NoRevival                          // a renewal makes a reader's expired lease valid again
	EvictedReaders                     // a reader that enters a phase whose readers the server has forgotten counts as the only reader
	DeadWriters                        // a writer keeps readers out although its inbox has no subscriber
	GiveUpAdmits                       // a writer that leaves the queue does not let in the readers behind it
	GiveUpHands                        // a waiter that leaves the queue of an expired key does not hand the key to the next waiter
	Announce                           // a writer that is first in the queue does not notify the readers
	SayWriter                          // grants and renewals of readers do not report a waiting writer
	Undo                               // an undone acquire that runs late is granted
	NoOvertaking                       // a writer that finds the key free takes it, although other callers wait
	KeepHanded                         // a writer's entry leaves the queue when the writer is handed the key, so no process notices that the hand-off was not confirmed
	BreakAll                           // a revocation of a phase marks each reader as revoked, but removes no reader
	rulesEnd
)

var ruleNames = [...]string{
	WaitBehindWriters: "wait behind writers", ReadersAfterWriter: "readers after a writer", WriterAfterReaders: "a writer after readers",
	Together: "together", OwnExpiry: "own expiry", LastReader: "end with the last reader", EntryPerToken: "an entry per token",
	NewPhase: "a new phase forgets", ComparePhase: "compare the phase", OnlyLengthen: "only lengthen", NoRevival: "no revival",
	EvictedReaders: "remember evicted readers", DeadWriters: "dead writers", GiveUpAdmits: "a give-up admits", GiveUpHands: "a give-up hands on",
	Announce: "announce", SayWriter: "say that a writer waits",
	Undo: "undo", NoOvertaking: "no overtaking",
	KeepHanded: "keep the handed entry", BreakAll: "a break throws out",
}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(ruleNames) && r > 0 {
		return ruleNames[r]
	}
	return "none"
}

// Rules returns all rules.
func Rules() []Rule {
	var all []Rule
	for r := Rule(1); r < rulesEnd; r++ {
		all = append(all, r)
	}
	return all
}
