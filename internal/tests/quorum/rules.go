package quorum

// Rule is a rule of the protocol. When a run leaves the rule out, an invariant breaks.
type Rule int

// The rules.
const (
	None    Rule = iota
	Confirm      // votes with different fences are raised to the largest fence
	Owner        // a confirmation counts only if the token still has the vote of the node
	Pin          // a confirmation counts only if the node has not replaced the vote that the client has counted
	Block        // a confirmation raises the counter to the end of the block
	Clock        // a counter is never behind the node's clock, so that a node that lost its counter continues with larger fences
	Gate         // a node that may have forgotten its votes does not vote for a while
	Sent         // a lease's time counts from a moment before the request for its votes
)

var names = [...]string{"none", "confirm", "owner", "pin", "block", "clock", "gate", "sent"}

func (r Rule) String() string { return names[r] }

// Kind names the invariant that has broken.
type Kind int

// The invariants.
const (
	Unique Kind = iota
	Forward
	InOrder
	Alone
	kinds
)

// Scenario has the settings of a run. Times are in ticks.
type Scenario struct {
	Nodes, Clients int
	TTL            int64
	Skew           int64 // the largest difference of the clocks that the protocol assumes
	Differ         int64 // the largest real difference of the clocks
	Gate           int64 // how long a node does not vote after it has forgotten its data
	Block          int64 // the largest number of fences in a grant
	Forget         int   // on average, a node forgets its data once in this number of steps; 0: never
	Lose, Repeat   int   // of a hundred messages, how many are lost or late, and how many are repeated
	AnyExpiry      bool  // votes may expire at any instant, as if the clocks showed any time
	Without        Rule
}

// Result is the result of a run.
type Result struct {
	Grants, OneRound, Forgot, Expired int
	Broken                            [kinds]int
}
