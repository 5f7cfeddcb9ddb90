package main

import (
	"bytes"
	_ "embed"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

//go:embed transcript.txt
var transcript string

func TestMain(m *testing.M) { redistest.Main(m) }

// Each step fails as the transcript says, on a real server and on the server inside of the program.
// On the real server, an hour is shortened, because a key without a TTL never expires.
func TestEachStepFailsAsTheTranscriptSays(t *testing.T) {
	t.Parallel()
	local := miniredis.RunT(t)
	own := redis.NewClient(&redis.Options{Addr: local.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = own.Close() })
	for name, at := range map[string]struct {
		client *redis.Client
		pass   func(time.Duration)
	}{
		"in this process": {own, local.FastForward},
		"a real server":   {redistest.Shared(t).Client(t), func(d time.Duration) { <-time.After(min(d, 3*ttl)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := run(t.Context(), &out, at.client, at.pass); err != nil {
				t.Fatalf("%v, after:\n%s", err, &out)
			}
			if out.String() != transcript {
				t.Errorf("the program prints\n%s\nand the transcript says\n%s\nif that is right now, write it there: go run ./setnx >setnx/transcript.txt", &out, transcript)
			}
		})
	}
}
