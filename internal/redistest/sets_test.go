package redistest

import (
	"fmt"
	"testing"
)

func TestStartSentinel(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t)
	client := s.Client(t)
	setKey(t, client, "key")
	first := s.Servers[0]
	first.Kill()
	promoted := s.Promoted(t)
	if promoted == first {
		t.Fatal("the dead master was promoted")
	}
	if got := promoted.Client(t).Get(t.Context(), "key").Val(); got != "here" {
		t.Errorf("the promoted replica has key = %q", got)
	}
}

func TestStartCluster(t *testing.T) {
	t.Parallel()
	cluster := StartCluster(t)
	client := cluster.Client(t)
	for i := range 100 {
		key := fmt.Sprint("key", i)
		if err := client.Set(t.Context(), key, key, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}

	slot := int(client.ClusterKeySlot(t.Context(), "key1").Val())
	from, i := cluster.Owner(slot)
	to := cluster.Masters[(i+1)%3]
	move := cluster.Migrate(t, slot, from, to)
	if err := from.Client(t).Get(t.Context(), "{key1}none").Err(); err == nil || err.Error()[:3] != "ASK" {
		t.Errorf("the source answers %v for a key that is not there, want ASK", err)
	}
	if n := move.Carry(); n != 1 {
		t.Errorf("carried %d keys", n)
	}
	move.Finish()
	if got := to.Client(t).Get(t.Context(), "key1").Val(); got != "key1" {
		t.Errorf("the target has key1 = %q", got)
	}

	cluster.Failover(t, cluster.Replicas[0])
	for i := range 100 {
		key := fmt.Sprint("key", i)
		if got, err := client.Get(t.Context(), key).Result(); err != nil || got != key {
			t.Errorf("after a failover: %s = %q, %v", key, got, err)
		}
	}
}
