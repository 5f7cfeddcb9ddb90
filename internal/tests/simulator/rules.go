package simulator

// Rule is a rule of the protocol. All rules apply unless a run leaves one out. Without any one of
// them an invariant breaks. That shows that the rule is needed, and that the simulation detects its
// absence.
type Rule uint8

// The rules. The comment of each rule describes the behaviour without it.
const (
	SentOnce       Rule = iota + 1 // the client library repeats a call whose reply was lost, without notice
	OneHold                        // a requeue uses the old token again
	Idempotent                     // a repeated acquire mints another fence
	CountFromSend                  // deadlines count from the reply
	WriteFirst                     // a hand-off publishes before its first write, which a full server refuses
	OnlyLengthen                   // a renewal sets the expiry, also to an earlier time
	FreshMessage                   // a grant by message counts from its receipt, however late that is
	IgnoreIfHeld                   // a message about a token that is held is answered with a release
	UndoUnanswered                 // an acquire that was never answered is only released
	ResetDeaf                      // an inbox without a subscriber is not opened again
	NoOvertaking                   // an acquire that finds the lease free takes it, although others wait
	Recheck                        // a waiter relies on messages
	KeepHanded                     // an entry leaves the queue when it is handed the lease, not when that is confirmed
	VoidStamp                      // the server's time from before a re-subscription is compared with one from after it
	RefuseNext                     // a release queues its next token although that was undone
	StayInBlock                    // a local hand-off goes on beyond the fences that were reserved
	LossEndsStreak                 // a local hand-off goes on after the lease is over
	WholeToken                     // a lease belongs to each owner whose token is its prefix
	ShortWait                      // the wait is measured by the server's clock, as if both clocks ran at the same rate
	OnlyNearer                     // a waiter that becomes first in the queue drops its earlier re-check
	NextInLine                     // a release does not check whether its next token already waits
	rulesEnd
)

var ruleNames = [...]string{
	SentOnce: "sent once", OneHold: "one token, one hold", Idempotent: "idempotent per token", CountFromSend: "count from the send",
	WriteFirst: "write first", OnlyLengthen: "only lengthen", FreshMessage: "fresh message", IgnoreIfHeld: "ignore if held",
	UndoUnanswered: "undo the unanswered", ResetDeaf: "reset a deaf inbox", NoOvertaking: "no overtaking", Recheck: "re-check",
	KeepHanded: "keep the handed entry", VoidStamp: "void the stamp", RefuseNext: "refuse an undone next",
	StayInBlock: "stay in the block", LossEndsStreak: "a loss ends the streak", WholeToken: "compare the whole token",
	ShortWait: "count the wait short", OnlyNearer: "only nearer", NextInLine: "next in line",
}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(ruleNames) && r > 0 {
		return ruleNames[r]
	}
	return "none"
}

// Rules lists all.
func Rules() []Rule {
	var all []Rule
	for r := Rule(1); r < rulesEnd; r++ {
		all = append(all, r)
	}
	return all
}
