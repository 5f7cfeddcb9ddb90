package readers

// Rule is one thing that the protocol does, and that can be left out.
type Rule int

// Rules of readers and writers. The comment says what happens without.
const (
	WaitBehindWriters  Rule = iota + 1 // a reader enters an open phase although a writer waits
	ReadersAfterWriter                 // after a writer the first in the queue is served, who may be another writer
	WriterAfterReaders                 // after the last reader all readers who wait enter, whoever stands before them
	Together                           // after a writer only the first reader enters
	OwnExpiry                          // a part lasts as long as the lease does
	LastReader                         // the lease runs as long as it did although its last reader leaves others
	EntryPerToken                      // a reader that asks again is counted again
	NewPhase                           // parts of an earlier phase count in the next
	ComparePhase                       // a renewal does not look which phase its reader means
	OnlyLengthen                       // a renewal may make a part shorter
	NoRevival                          // a renewal brings back a part that has run out
	EvictedReaders                     // who enters a phase whose readers the server has forgotten counts as the only one
	DeadWriters                        // a writer keeps readers out although nobody listens at its inbox
	GiveUpAdmits                       // a writer that leaves the queue does not let in the readers behind it
	GiveUpHands                        // who leaves the queue of a key that has run out does not hand it on
	Announce                           // a writer that is first in the queue does not tell the readers
	SayWriter                          // grants and renewals of readers do not say that a writer waits
	DowngradeFence                     // a phase that a writer opens by a downgrade has a fence of its own
	DowngradeAdmits                    // a downgrade lets nobody in
	DowngradeEnds                      // a downgrade hands the key over as a release does, and the writer reads beside the next
	Undo                               // an undone acquire that runs late is granted
	NoOvertaking                       // a writer that finds the key free takes it, whoever waits
	KeepHanded                         // a writer's entry leaves the queue when it is handed the key, so nobody knows that it let that lapse
	Kept                               // a reader with AtLeast leaves at once
	BreakAll                           // a break of a phase throws out nobody but leaves them a note
	rulesEnd
)

var ruleNames = [...]string{
	WaitBehindWriters: "wait behind writers", ReadersAfterWriter: "readers after a writer", WriterAfterReaders: "a writer after readers",
	Together: "together", OwnExpiry: "own expiry", LastReader: "end with the last reader", EntryPerToken: "an entry per token",
	NewPhase: "a new phase forgets", ComparePhase: "compare the phase", OnlyLengthen: "only lengthen", NoRevival: "no revival",
	EvictedReaders: "remember evicted readers", DeadWriters: "dead writers", GiveUpAdmits: "a give-up admits", GiveUpHands: "a give-up hands on",
	Announce: "announce", SayWriter: "say that a writer waits", DowngradeFence: "downgrade keeps the fence",
	DowngradeAdmits: "downgrade admits", DowngradeEnds: "downgrade hands nothing over", Undo: "undo", NoOvertaking: "no overtaking",
	KeepHanded: "keep the handed entry", Kept: "keep the kept", BreakAll: "a break throws out",
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
