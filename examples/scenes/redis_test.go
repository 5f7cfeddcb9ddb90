package main

import (
	"testing"
	"time"
)

func TestClockOfTheLocalRedisRuns(t *testing.T) {
	t.Parallel()
	local, err := startRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer local.close()
	client, err := openRedis(t.Context(), local.url())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	first, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(t.Context(), "lock", "me", 50*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	await(t, "the key has expired", func() bool { return client.Exists(t.Context(), "lock").Val() == 0 })
	if now := client.Time(t.Context()).Val(); now.Sub(first) < 40*time.Millisecond {
		t.Errorf("TIME went on by %v only", now.Sub(first))
	}
}
