package link

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Together is a script that makes several calls of another script at once. The script makes a
// call only in simple cases, and then has the same effect as the other script. One call of this
// script costs the server and the client a fraction of the cost of the single calls. The script
// returns the answers with line feeds between them. An empty answer means that the script has
// left out a call, which is then sent by itself. The script is free to leave out any of the
// calls. An error of the script must prove that the script has done nothing.
type Together struct {
	Script *Script
	Keys   int   // how many keys of each call the script gets, from the first key on
	Args   []int // which arguments of each call the script gets, by index; "" replaces a missing argument
}

const (
	// fewest is the smallest number of calls for which one script is used.
	fewest = 2
	// After a script has left out many calls, or the server has refused it, the next separateAfter
	// batches make each call by itself.
	separateAfter = 32
)

// group is a call that makes several other calls.
type group struct {
	Call
	members []*Call
	leftOut []*Call // the calls that were left out, and must be sent by themselves
}

// gather replaces calls that one script can make by a call of this script. The given slice does not
// change.
func (l *link) gather(calls []*Call) (gathered []*Call, groups []*group) {
	if len(calls) < fewest || l.owner.cluster != nil { // keys of different slots cannot be in one call
		return calls, nil
	}
	if l.separate.Load() > 0 {
		l.separate.Add(-1)
		return calls, nil
	}
	for _, c := range calls {
		if c.Together != nil {
			groups = c.Together.join(groups, c)
		}
	}
	groups = slices.DeleteFunc(groups, func(g *group) bool { return len(g.members) < fewest })
	for _, g := range groups {
		g.Words = g.Together.wordsFor(g.members)
	}
	for _, c := range calls {
		g := groupOf(groups, c)
		switch {
		case g == nil:
			gathered = append(gathered, c)
		case g.members[0] == c:
			gathered = append(gathered, &g.Call)
		}
	}
	return gathered, groups
}

// join adds the call c to its group, makes this group if it does not exist, and returns all groups.
func (t *Together) join(groups []*group, c *Call) []*group {
	if g := groupOf(groups, c); g != nil {
		g.members = append(g.members, c)
		return groups
	}
	g := &group{Call: Call{Script: t.Script, Together: t, Key: c.Key, Class: c.Class, Acked: c.Acked, values: context.Background()}}
	g.Receiver = g
	g.fate.Store(underWay)
	g.members = append(make([]*Call, 0, 16), c)
	return append(groups, g)
}

// groupOf returns the group in groups that contains the call c, or nil when no group contains c.
func groupOf(groups []*group, c *Call) *group {
	for _, g := range groups {
		if g.Together == c.Together {
			return g
		}
	}
	return nil
}

// wordsFor returns the words of the call that makes several calls together.
func (t *Together) wordsFor(calls []*Call) []any {
	words := make([]any, 0, 3+len(calls)*(t.Keys+len(t.Args)))
	words = append(words, "evalsha", t.Script.sha, len(calls)*t.Keys)
	for _, c := range calls {
		words = append(words, c.Words[3:3+t.Keys]...)
	}
	for _, c := range calls {
		args := c.Words[3+c.Words[2].(int):]
		for _, i := range t.Args {
			if i < len(args) {
				words = append(words, args[i])
			} else {
				words = append(words, "")
			}
		}
	}
	return words
}

// Receive gives each call of the group its answer. An error of the script itself may be due to
// only one of the calls, so all calls are then sent by themselves. An answer with another number of
// parts is not the script's answer, so the effect of the calls is then unclear.
func (g *group) Receive(*Call) {
	text, err := g.Answer()
	if ownRefusal(err) {
		g.leftOut = g.members
		return
	}
	whole := err == nil && strings.Count(text, "\n") == len(g.members)-1
	for _, c := range g.members {
		answer := text // if the answer cannot be read, each call gets the whole answer
		if whole {
			answer, text, _ = strings.Cut(text, "\n")
		}
		if whole && answer == "" {
			g.leftOut = append(g.leftOut, c)
			continue
		}
		if c.fate.CompareAndSwap(underWay, answered) {
			c.acks, c.acksErr = g.acks, g.acksErr
			c.deliver(answer, err)
		}
	}
}

// ownRefusal reports whether an error reply may be due to only one key, or to the script
// itself. If so, the same calls can get other answers when each call is sent by itself. OOM is
// such an error: a full server refuses the lease of a free key, but serves calls for held keys.
// Redis before 7 writes ERR before the errors of commands in scripts. If an error is of any
// other kind, single calls would get it, too.
func ownRefusal(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return slices.Contains([]string{"NOPERM", "WRONGTYPE", "CROSSSLOT", "OOM", "ERR"}, code)
}

// leftOutOf returns the calls of the groups that a script has left out and whose callers still
// wait. When there are many such calls, the next batches make each call by itself.
func (l *link) leftOutOf(groups []*group) (left []*Call) {
	members := 0
	for _, g := range groups {
		members += len(g.members)
		for _, c := range g.leftOut {
			if c.fate.Load() == underWay {
				left = append(left, c)
			}
		}
	}
	if 8*len(left) > members {
		l.separate.Store(separateAfter)
	}
	return left
}
