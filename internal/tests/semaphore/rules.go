package semaphore

// Rule is a rule of the protocol that can be left out.
type Rule int

// The comment beside a rule describes the wrong behaviour when the rule is switched off.
const (
	OnlyLengthen   Rule = iota + 1 // a late renewal shortens an extended permit
	SmallestLimit                  // a grant considers only the n of the new permit
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
	rulesEnd
)

var ruleNames = [...]string{
	OnlyLengthen: "only lengthen", SmallestLimit: "the smallest limit",
	PermitsAreTrue: "P and U are the truth", SameSize: "P and U have one size", NoOvertaking: "no overtaking", Tombstone: "tombstone",
	LapsedLoses: "a lapsed claim costs the places", OutliveL: "P and U outlive L", LivingHead: "a head lives", SeenHead: "a head is seen",
	ServeAll: "serve goes on", LeaverServes: "a leaver serves",
}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(ruleNames) && r > 0 {
		return ruleNames[r]
	}
	return "none"
}
