package redistest

import (
	"testing"

	"github.com/latchkit/latchkit/internal/proc/faketest"
)

func TestMain(m *testing.M) { Main(m) }

// This test is not parallel, because it changes PATH for the whole process.
func TestMissingProgramFailsWithInstructions(t *testing.T) {
	t.Setenv("PATH", "")
	for name, start := range map[string]func(t testing.TB){
		"Start": func(t testing.TB) { Start(t) },
		"Shared": func(t testing.TB) {
			var mine sharedServer
			mine.open()
			if _, err := mine.get(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		test := faketest.Run(t, start)
		for _, instruction := range []string{"redis-server", "make tools", "apt-get install redis-server"} {
			if !test.FailedWith(instruction) {
				t.Errorf("%s: nothing about %q in %v", name, instruction, test)
			}
		}
	}
}
