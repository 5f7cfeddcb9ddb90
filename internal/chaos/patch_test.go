package chaos_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
)

// The server runs the changed script, whether the client sends the text or only the digest.
func TestAPatchedScriptRunsInPlaceOfItsOriginal(t *testing.T) {
	b := setup(t)
	b.proxy.Patch("return 'guarded'", "return 'open'")
	script := redis.NewScript("-- " + b.key + "\nreturn 'guarded'") // a text that no other test sends
	for range 3 {
		if got, err := script.Run(t.Context(), b.client, nil).Text(); got != "open" || err != nil {
			t.Errorf("the script returned %q, %v", got, err)
		}
	}
	if sent := b.proxy.Commands(); sent["EVAL"] != 1 || sent["EVALSHA"] != 3 || b.proxy.Patched() != 1 {
		t.Errorf("the client has sent %v, and %d scripts were changed", sent, b.proxy.Patched())
	}
	if got, err := script.Run(t.Context(), b.witness, nil).Text(); got != "guarded" || err != nil {
		t.Errorf("without the proxy, the script returned %q, %v", got, err)
	}
}

func TestAHalvedReplyEndsItsConnection(t *testing.T) {
	b := setup(t)
	long := strings.Repeat("x", 1000)
	must(t, b.client.Set(t.Context(), b.key, long, 0).Err())
	halved := b.proxy.HalveReplies(1, chaos.Command("GET"))
	if got, err := b.client.Get(t.Context(), b.key).Result(); err == nil {
		t.Errorf("half of a reply counts as a reply of %d bytes", len(got))
	}
	halved.Await(t, 1)
	if got := b.client.Get(t.Context(), b.key).Val(); got != long {
		t.Errorf("the next reply has %d bytes", len(got))
	}
}
