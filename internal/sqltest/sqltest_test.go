package sqltest

import (
	"os"
	"testing"

	"github.com/latchkit/latchkit/internal/proc/faketest"
)

func TestMain(m *testing.M) { os.Exit(Main(m).Run()) }

// This test is not parallel, because it changes PATH for the whole process.
func TestAMissingProgramFailsWithInstructions(t *testing.T) {
	t.Setenv("PATH", "")
	defer func(all []string) { outOfPath = all }(outOfPath)
	outOfPath = nil
	for kind, want := range map[Kind]string{Postgres: "apt-get install postgresql", MariaDB: "apt-get install mariadb-server-core"} {
		test := faketest.Run(t, func(t testing.TB) { Start(t, kind) })
		if !test.FailedWith("make tools") || !test.FailedWith(want) {
			t.Errorf("the test had %v", test)
		}
	}
}
