package sqltest

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc/faketest"
)

func TestMain(m *testing.M) { os.Exit(Main(m).Run()) }

func TestServersListenAndLeaveNothingBehind(t *testing.T) {
	for _, kind := range []Kind{Postgres, MariaDB} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			var s *Server
			test := faketest.Run(t, func(t testing.TB) {
				s = Start(t, kind)
				conn, err := net.DialTimeout("tcp", s.Addr(), 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
				t.Fatal("on purpose")
			})
			if !test.FailedWith("on purpose") || !test.Logged("ready") {
				t.Errorf("the test had %v", test)
			}
			select {
			case <-s.process.Exited():
			case <-time.After(patience):
				t.Error("it still runs")
			}
			if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
				t.Errorf("its folder is still there: %v", err)
			}
		})
	}
}

func TestAPortOfSomebodyElseIsNoticed(t *testing.T) {
	taken, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, kind := range []Kind{Postgres, MariaDB} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s, err := Launch(kind)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			s.port = taken.Addr().(*net.TCPAddr).Port
			if err := s.listen(); !errors.Is(err, errPortTaken) {
				t.Errorf("on a port that is taken: %v", err)
			}
		})
	}
}

func TestSharedServersNeedMain(t *testing.T) {
	mine := servers{running: map[Kind]*Server{}}
	if _, err := mine.get(Postgres); err == nil {
		t.Error("a server that nobody would stop was started")
	}
}

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
