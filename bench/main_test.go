package main

import (
	"context"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

// unlocked is a contestant that locks nothing. The bench must report its violations.
var unlocked = contestant{name: "no lock", open: func(settings) (locks, error) { return noLocks{}, nil }}

type noLocks struct{}

func (noLocks) Lock(ctx context.Context, _ string) (hold, error) { return noHold{}, ctx.Err() }
func (noLocks) Close()                                           {}

type noHold struct{}

func (noHold) Release(context.Context) error { return nil }

func TestMain(m *testing.M) {
	// before playPart, which searches for the contestant in a child process
	contestants = append(contestants, unlocked)
	playPart()
	progress = func(string, ...any) {}
	redistest.Main(m)
}

func startServer(t *testing.T) server {
	t.Helper()
	s := redistest.Start(t)
	return server{Server: s, witness: s.Client(t)}
}
