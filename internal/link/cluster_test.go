package link

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// keyOn returns a key whose slot is on the given master and whose name ends with name. It also
// returns the slot.
func keyOn(t *testing.T, c *redis.ClusterClient, cluster *redistest.Cluster, master int, name string) (key string, slot int) {
	t.Helper()
	for i := range 10000 {
		key := fmt.Sprintf("{%d}%s", i, name)
		slot := int(c.ClusterKeySlot(t.Context(), key).Val())
		if _, owner := cluster.Owner(slot); owner == master {
			return key, slot
		}
	}
	t.Fatal("there is no such key")
	return "", 0
}

// A node that hangs does not delay calls to another node.
func TestANodeOfAClusterThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	client := cluster.Client(t, func(o *redis.ClusterOptions) { o.ReadTimeout = -1 })
	hung, _ := keyOn(t, client, cluster, 0, "hung")
	well, _ := keyOn(t, client, cluster, 1, "well")
	ls := newLinks(t, client, Options{})
	for _, key := range []string{hung, well} {
		if _, err := ls.Do(t.Context(), countCall(key)); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Masters[0].Pause()
	for range 50 {
		ls.Put(t.Context(), countCall(hung))
		c := countCall(well)
		began := time.Now()
		ls.Put(t.Context(), c)
		<-done(c)
		if _, err := c.Answer(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > busy {
			t.Errorf("a call to a sound node took %v", took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := ls.Do(ctx, countCall(hung)); err == nil {
		t.Error("a node that stands still has answered")
	}
	if took := time.Since(began); took > 50*time.Millisecond+busy {
		t.Errorf("the caller is back after %v", took)
	}
	cluster.Masters[0].Resume()
}

// While a slot moves, and after it has moved, each call is executed once.
func TestCallsFollowTheirSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	ls := newLinks(t, client, Options{})
	key, slot := keyOn(t, client, cluster, 0, "k")
	count := func(key string) {
		t.Helper()
		if _, err := ls.Do(t.Context(), countCall(key)); err != nil {
			t.Fatal(err)
		}
	}
	count(key)
	move := cluster.Migrate(t, slot, cluster.Masters[0], cluster.Masters[1])
	count(key)       // the key is still on the source, which serves it
	count(key + "2") // the source does not have the key and answers ASK, so the target serves it
	move.Carry()
	count(key) // the source answers ASK
	move.Finish()
	for range 20 {
		count(key) // the source answers MOVED
	}
	if failed := sendTogether(t, ls, 20, func(int) string { return key }); failed != nil {
		t.Error(failed)
	}
	if n, _ := client.Get(t.Context(), key).Int(); n != 43 {
		t.Errorf("43 calls were executed %d times", n)
	}
	if n, _ := client.Get(t.Context(), key+"2").Int(); n != 1 {
		t.Errorf("1 call was executed %d times", n)
	}
}

// After a failover, calls go to the new master, although the old master answers no call with
// MOVED.
func TestCallsFollowAFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	ls := newLinks(t, client, Options{})
	key, _ := keyOn(t, client, cluster, 0, "k")
	if _, err := ls.Do(t.Context(), countCall(key)); err != nil {
		t.Fatal(err)
	}
	cluster.Failover(t, cluster.Replicas[0])
	cluster.Masters[0].Kill()
	await(t, "the new master answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ls.Do(ctx, countCall(key))
		return err == nil
	})
}

// Calls to a cluster that cannot be reached are refused, so no caller has to wait.
func TestACallIsRefusedWhileTheStateOfTheClusterIsUnknown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ReadTimeout: 3 * time.Second})
	t.Cleanup(func() { _ = client.Close() })
	server.Pause()
	ls := newLinks(t, client, Options{})
	c := countCall("k")
	began := time.Now()
	ls.Send(t.Context(), c)
	if took := time.Since(began); took > busy {
		t.Errorf("Send took %v", took)
	}
	<-done(c)
	if _, err := c.Answer(); !errors.Is(err, ErrNoState) {
		t.Errorf("the call ended with %v", err)
	}
	if took := time.Since(began); took > answerFor+busy {
		t.Errorf("it ended after %v", took)
	}
	server.Resume()
}
