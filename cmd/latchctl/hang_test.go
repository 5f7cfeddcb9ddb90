package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// deaf returns the address of a server that accepts connections but never answers.
func deaf(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var all []net.Conn
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all = append(all, c)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
		for _, c := range all {
			_ = c.Close()
		}
	})
	return listener.Addr().String()
}

// In earlier versions, doctor waited for a node that did not answer until no time was left for
// its other checks. Then doctor reported that the servers were no quorum, and wrongly advised a
// call of EnrollRedlock.
func TestDefectDoctorTookAHangingNodeForAMissingQuorum(t *testing.T) {
	t.Parallel()
	one, two, three := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	if err := locker.EnrollRedlock(t.Context(), []locker.Client{one.Client(t), two.Client(t), three.Client(t)}); err != nil {
		t.Fatal(err)
	}
	hanging := deaf(t)
	all := diagnosis(t, 1, []string{"redis://" + one.Addr(), "redis://" + two.Addr(), "redis://" + hanging})
	finds(t, all, "reachable", bad, "no reply within")
	finds(t, all, "quorum", bad, "node 2, "+hanging+", does not vote")
	finds(t, all, "locks", okay, "0 are held")
}

// One node of a quorum hangs. doctor used to report that no node voted, because it did not wait
// until its first query had ended at all nodes.
func TestDefectDoctorTookTheSilenceOfOneNodeForThatOfAll(t *testing.T) {
	t.Parallel()
	var nodes []string
	var clients []locker.Client
	var last *redistest.Server
	for range 3 {
		last = redistest.Start(t)
		nodes, clients = append(nodes, "redis://"+last.Addr()), append(clients, last.Client(t))
	}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	last.Pause()
	t.Cleanup(last.Resume)
	out := exits(t, 1, nodes, "doctor", "--timeout", "20s").out
	checkContains(t, out, "node 2, "+last.Addr()+", does not vote")
	if n := strings.Count(out, "does not vote"); n != 1 {
		t.Errorf("%d nodes do not vote:\n%s", n, out)
	}
}

// When a check failed because a server was down, doctor used to give advice about rights.
func TestDefectDoctorBlamedTheRightsForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	const rights = "give a user who may read all keys"
	if got := remedy(errors.New("CLUSTERDOWN The cluster is down"), rights); strings.Contains(got, "user") {
		t.Errorf("the advice is %q", got)
	}
	if got := remedy(errors.New("NOPERM User locks has no permissions to run the 'scan' command"), rights); got != rights {
		t.Errorf("the advice is %q", got)
	}
}

// Only one node answers, and it has no marker. doctor cannot know whether the other nodes have
// markers, so it must not advise a call of EnrollRedlock.
func TestDoctorDoesNotAdviseToEnrollWhileNodesAreSilent(t *testing.T) {
	t.Parallel()
	empty := redistest.Start(t)
	all := diagnosis(t, 1, []string{"redis://" + empty.Addr(), "redis://" + deaf(t), "redis://" + deaf(t)}, "--timeout", "3s")
	finds(t, all, "quorum", bad, "not checked: 2 nodes do not answer")
}

// ls used to ask one node after the other whether the node belongs to a Cluster. A node that did
// not answer used up the time for all nodes.
func TestDefectLsWaitedForANodeThatHangs(t *testing.T) {
	t.Parallel()
	one, two, three := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	clients := []locker.Client{one.Client(t), two.Client(t), three.Client(t)}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"redis://" + deaf(t), "redis://" + one.Addr(), "redis://" + two.Addr()}
	checkContains(t, exits(t, 0, nodes, "ls", "--timeout", "5s").out, "nothing is locked")
}

// When the user may not run TIME, doctor used to report that the server does not answer.
func TestDefectDoctorTookARefusalForSilence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "acl", "setuser", "weak", "on", ">pw", "~*", "&*", "+get", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	all := diagnosis(t, 1, []string{"redis://weak:pw@" + server.Addr()})
	finds(t, all, "reachable", okay, "it answers")
	finds(t, all, "clock", bad, "may not run TIME")
}
