// Package quorum is the Store of locks on several independent servers. It is Redlock with fences.
// With each vote, a node proves that it remembers its leases.
//
//	fan      one step on all nodes at once; an appeal is its call to each node
//	tally    the result of a step, derived from the replies of the nodes
//	ballot   for one token: which calls were sent to which node
//	node     one node: its scripts, its marker, and its clock compared with the others
//	plan     which nodes vote, and the next step for the others, derived from all markers
//	roster   which nodes vote, as far as this process knows; it executes the plan
package quorum
