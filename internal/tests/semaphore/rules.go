package semaphore

// Rule is a rule of the protocol that can be left out.
type Rule int

// The comment beside a rule describes the wrong behaviour when the rule is switched off.
const (
	FreshMessages  Rule = iota + 1 // a grant by message is trusted however old it is
	IgnoreWhenHeld                 // a message for a token that already holds is answered with a release
	CountFromSend                  // a deadline counts from the answer instead of the time before the call
	OnlyLengthen                   // a late renewal shortens an extended permit
	SmallestLimit                  // a grant considers only the n of the new permit
	ServerTime                     // expiries are computed by the clients' clocks
	PermitsAreTrue                 // when P and U have permits but L is missing, the key counts as free
	SameSize                       // if the server has evicted P or U, the permits that remain are counted
	NoOvertaking                   // a newcomer takes free units while other callers wait
	Tombstone                      // an acquire that was undone takes units when it runs late
	LapsedLoses                    // a process that did not confirm a permit keeps its places in the queue
	OutliveL                       // P and U expire together with L
	LivingHead                     // a dead first waiter, for which too few units are free, keeps its place
	SeenHead                       // a stopped process keeps the first place while units are free
	ServeAll                       // a release serves only one waiter
	LeaverServes                   // when a waiter leaves, no other waiter is served
	TellAfterMost                  // a step that serves its largest number of waiters does not notify the next waiter
	AskAgain                       // a waiter asks only after a message
	NextLeads                      // a process asks for the next permit only when it has released the previous permit
	PassCrossing                   // a permit that arrives when its caller has just left is forgotten
	rulesEnd
)

var ruleNames = [...]string{
	FreshMessages: "fresh messages", IgnoreWhenHeld: "ignore messages for held tokens", CountFromSend: "count from the send",
	OnlyLengthen: "only lengthen", SmallestLimit: "the smallest limit", ServerTime: "the server's time",
	PermitsAreTrue: "P and U are the truth", SameSize: "P and U have one size", NoOvertaking: "no overtaking", Tombstone: "tombstone",
	LapsedLoses: "a lapsed claim costs the places", OutliveL: "P and U outlive L", LivingHead: "a head lives", SeenHead: "a head is seen",
	ServeAll: "serve goes on", LeaverServes: "a leaver serves", TellAfterMost: "tell after the most", AskAgain: "ask again",
	NextLeads: "the next leads", PassCrossing: "pass a crossing permit on",
}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(ruleNames) && r > 0 {
		return ruleNames[r]
	}
	return "none"
}
