package simulator

// Rule is a rule of the protocol. A run applies all rules, or all rules except one. When one rule
// is left out, an invariant breaks. This shows that the rule is necessary, and that the simulation
// detects its absence.
type Rule uint8

// The rules. The comment beside a rule describes the wrong behaviour when the rule is switched off.
const (
	SentOnce       Rule = iota + 1 // the client library repeats a call whose reply was lost, without notice
	OneHold                        // a process queues again with the token of an earlier wait
	Idempotent                     // a repeated acquire makes another fence
	CountFromSend                  // a deadline counts from the reply instead of the call
	WriteFirst                     // a hand-off publishes before its first write, which a full server refuses
	OnlyLengthen                   // a renewal may also make the expiry earlier
	FreshMessage                   // a grant by message counts from its receipt, however late the message arrives
	IgnoreIfHeld                   // a message about a token that is held is answered with a release
	UndoUnanswered                 // an acquire without an answer is released without a tombstone
	ResetDeaf                      // an inbox without a subscriber is not opened again
	NoOvertaking                   // an acquire that finds the lease free takes it, although other tokens wait
	Recheck                        // a waiter relies on messages, and never sends a second acquire
	KeepHanded                     // an entry leaves the queue when it is handed the lease, before the hand-off is confirmed
	VoidStamp                      // a grant's age is computed from a reply that came before the present subscription
	StayInBlock                    // local hand-offs continue when all reserved fences are used
	LossEndsStreak                 // local hand-offs continue after the lease has ended
	WholeToken                     // a token that is a prefix of the owner's token counts as the owner
	ShortWait                      // a grant's age is computed as if all clocks ran at the same rate
	OnlyNearer                     // a waiter that becomes first replaces an earlier re-check by a later one
	rulesEnd
)

var ruleNames = [...]string{
	SentOnce: "sent once", OneHold: "one token, one hold", Idempotent: "idempotent per token", CountFromSend: "count from the send",
	WriteFirst: "write first", OnlyLengthen: "only lengthen", FreshMessage: "fresh message", IgnoreIfHeld: "ignore if held",
	UndoUnanswered: "undo the unanswered", ResetDeaf: "reset a deaf inbox", NoOvertaking: "no overtaking", Recheck: "re-check",
	KeepHanded: "keep the handed entry", VoidStamp: "void the stamp",
	StayInBlock: "stay in the block", LossEndsStreak: "a loss ends the streak", WholeToken: "compare the whole token",
	ShortWait: "count the wait short", OnlyNearer: "only nearer",
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
