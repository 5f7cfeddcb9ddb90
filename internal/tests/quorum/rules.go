package quorum

// Rule is something that the protocol must do. Off, an invariant breaks.
type Rule int

// The rules.
const (
	None    Rule = iota
	Confirm      // votes that differ are raised to the largest
	Owner        // a confirmation counts only where the vote is still the token's
	Pin          // and only if it is still the vote that was counted
	Block        // a confirmation raises the counter over the whole block
	Clock        // a counter is never behind the node's clock, so that a node that lost it goes on above
	Gate         // a node that may have forgotten does not vote
	Sent         // a lease's time counts from before its votes were asked for
)

var names = [...]string{"none", "confirm", "owner", "pin", "block", "clock", "gate", "sent"}

func (r Rule) String() string { return names[r] }

// Kind is which invariant broke.
type Kind int

// The invariants.
const (
	Unique Kind = iota
	Forward
	InOrder
	Alone
	kinds
)

// Scenario is what a run is made of. Times are in ticks.
type Scenario struct {
	Nodes, Clients int
	TTL            int64
	Skew           int64 // by how much clocks may differ, as the protocol believes
	Differ         int64 // by how much they do
	Gate           int64 // how long a node that forgot does not vote
	Block          int64 // the most fences of a grant
	Forget         int   // a node forgets once in so many steps; 0: never
	Lose, Repeat   int   // of a hundred messages
	AnyExpiry      bool  // votes may end at any instant: as if clocks were worth nothing
	Without        Rule
}

// Result is what a run showed.
type Result struct {
	Grants, OneRound, Forgot, Expired int
	Broken                            [kinds]int
}
