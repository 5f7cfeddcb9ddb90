package foreign

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// operations is the page that describes how to repair a foreign key without a TTL.
const operations = "../../../docs/operations.md"

var repairScript = regexp.MustCompile(`EVAL "([^"]+)" 1 KEY VALUE`)

// Another program has set the key without a TTL, and has ended. Inspect shows that the key has
// no TTL. The script in docs/operations.md removes the key, so that the waiter gets it, but
// only if the key still has the value that Inspect has shown.
func TestAForeignKeyWithoutTTLIsShownAndRepaired(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(operations)
	if err != nil {
		t.Fatal(err)
	}
	script := repairScript.FindStringSubmatch(string(text))
	if script == nil {
		t.Fatalf("%s does not say how to repair a key without a TTL (%v)", operations, repairScript)
	}
	server := redistest.Shared(t)
	client := server.Client(t)
	const key = "endless"
	for _, kind := range []string{"NewSingle", "NewReadWrite"} {
		t.Run(kind, func(t *testing.T) {
			l := openLocker(t, kind, []*redistest.Server{server})
			client.Set(t.Context(), key, "a process that is gone", 0)
			info, err := l.Inspect(t.Context(), key)
			if err != nil || !info.Held || !info.Foreign || info.Left >= 0 {
				t.Fatalf("Inspect of a key without a TTL: %+v %v", info, err)
			}
			waiter := locktest.Queues(t, l, locker.Rule{Key: key}, client)
			repair := func(value string, removes int) {
				t.Helper()
				if n, err := client.Eval(t.Context(), script[1], []string{key}, value).Int(); err != nil || n != removes {
					t.Fatalf("the repair with the value %q: %d %v, want %d", value, n, err, removes)
				}
			}
			repair("another value", 0)
			waiter.WaitsStill()
			repair("a process that is gone", 1)
			lease := waiter.Granted(time.Second)
			repair(client.Get(t.Context(), key).Val(), 0) // the repair does not remove a lease, because the lease has a TTL
			locktest.Release(t, lease)
		})
	}
}
