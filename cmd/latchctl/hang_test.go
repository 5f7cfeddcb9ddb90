package main

import (
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

// A node that hangs takes no time from the checks of the others, and doctor does not take its
// silence for a missing quorum.
func TestDoctorPassesANodeThatHangs(t *testing.T) {
	t.Parallel()
	one, two, three := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	if err := locker.EnrollRedlock(t.Context(), []locker.Client{one.Client(t), two.Client(t), three.Client(t)}); err != nil {
		t.Fatal(err)
	}
	hanging := deaf(t)
	all := diagnosis(t, 1, []string{"redis://" + one.Addr(), "redis://" + two.Addr(), "redis://" + hanging})
	finds(t, all, "reachable", bad, "does not answer")
	finds(t, all, "quorum", bad, "node 2, "+hanging+", does not vote")
	finds(t, all, "locks", okay, "0 are held")
}

// While one node of a quorum is stopped, doctor says that this node does not vote, and no other.
func TestDoctorNamesTheNodeThatIsSilent(t *testing.T) {
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

// Only one node answers, and it has no marker. The silent nodes may have markers, so doctor does not
// advise to enroll before they answer.
func TestDoctorAdvisesToEnrollOnlyWhenAllNodesAnswer(t *testing.T) {
	t.Parallel()
	empty := redistest.Start(t)
	all := diagnosis(t, 1, []string{"redis://" + empty.Addr(), "redis://" + deaf(t), "redis://" + deaf(t)}, "--timeout", "3s")
	finds(t, all, "quorum", bad, "no server that answers")
	checkContains(t, all["quorum"].Advice, "when all of them answer")
}

// ls asks the nodes at the same time whether they belong to a Cluster, so one that hangs does not use
// up the time for all.
func TestLsDoesNotWaitForANodeThatHangs(t *testing.T) {
	t.Parallel()
	one, two, three := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	clients := []locker.Client{one.Client(t), two.Client(t), three.Client(t)}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"redis://" + deaf(t), "redis://" + one.Addr(), "redis://" + two.Addr()}
	checkContains(t, exits(t, 0, nodes, "ls", "--timeout", "5s").out, "nothing is locked")
}

// A server that refuses TIME and INFO answers.
func TestDoctorTakesARefusalForAnAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if err := server.Client(t).Do(t.Context(), "acl", "setuser", "weak", "on", ">pw", "~*", "&*", "+get", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	all := diagnosis(t, 0, []string{"redis://weak:pw@" + server.Addr()})
	finds(t, all, "settings", hint, "NOPERM")
	finds(t, all, "probe", hint, "ACL")
}
