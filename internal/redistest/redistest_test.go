package redistest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc/faketest"
)

func TestMain(m *testing.M) { Main(m) }

func TestStart(t *testing.T) {
	t.Run("gives a server without persistence, in a folder of its own", func(t *testing.T) {
		t.Parallel()
		s := Start(t)
		for name, want := range map[string]string{"save": "", "appendonly": "no", "dir": s.dir, "bind": loopback} {
			if got := config(t, s.Client(t), name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
	})

	t.Run("gives each test another server", func(t *testing.T) {
		t.Parallel()
		one, other := Start(t), Start(t)
		setKey(t, one.Client(t), "key")
		if exists(t, other.Client(t), "key") {
			t.Error("the other server has the key")
		}
	})

	t.Run("hands arguments to the server", func(t *testing.T) {
		t.Parallel()
		s := Start(t, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
		if got := config(t, s.Client(t), "maxmemory"); got != "3145728" {
			t.Errorf("maxmemory = %s", got)
		}
	})

	t.Run("knows the password it asked for", func(t *testing.T) {
		t.Parallel()
		s := Start(t, "--requirepass", "open sesame")
		s.Client(t)
		stranger := faketest.Run(t, func(t testing.TB) {
			s.Client(t, func(o *redis.Options) { o.Password = "" })
		})
		if !stranger.FailedWith("NOAUTH") {
			t.Errorf("a client without the password had %v", stranger)
		}
	})

	t.Run("reports what the server has to say against its arguments", func(t *testing.T) {
		t.Parallel()
		test := faketest.Run(t, func(t testing.TB) { Start(t, "--maxmemory-policy", "no-such-policy") })
		if !test.FailedWith("no-such-policy") || !test.FailedWith("must be one of") {
			t.Errorf("the test had %v", test)
		}
	})

	t.Run("leaves nothing behind a test that failed with its server paused", func(t *testing.T) {
		t.Parallel()
		var s *Server
		test := faketest.Run(t, func(t testing.TB) {
			s = Start(t)
			s.Pause()
			t.Fatal("on purpose")
		})
		awaitEnd(t, s)
		if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
			t.Errorf("its folder is still there: %v", err)
		}
		if !test.Logged("Ready to accept connections") {
			t.Errorf("the failed test does not show the server's log: %v", test)
		}
	})
}

func TestPort(t *testing.T) {
	t.Run("of somebody else is not taken for ours", func(t *testing.T) {
		t.Parallel()
		somebody := Start(t) // another server, which replies to INFO like the server of this test
		s := &Server{t: t, dir: t.TempDir()}
		t.Cleanup(s.cleanUp)
		tries := 0
		err := s.start(func() int {
			if tries++; tries < 3 {
				return somebody.Port()
			}
			return randomPort()
		})
		if err != nil || s.Port() == somebody.Port() {
			t.Fatalf("started on %d, where %d is taken: %v", s.Port(), somebody.Port(), err)
		}
	})

	t.Run("lies outside of the range of outgoing connections", func(t *testing.T) {
		for range 1000 {
			if port := randomPort(); port < 1024 || port >= 32768 {
				t.Fatalf("port %d", port)
			}
		}
	})
}

func TestFaults(t *testing.T) {
	impatient := func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries = 100*time.Millisecond, -1
	}

	t.Run("a paused server answers nobody until it is resumed", func(t *testing.T) {
		t.Parallel()
		s := Start(t)
		client := s.Client(t, impatient)
		s.Pause()
		if err := client.Ping(t.Context()).Err(); err == nil {
			t.Error("it answers")
		}
		s.Resume()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("after Resume: %v", err)
		}
	})

	t.Run("a killed server refuses connections, a restarted one is empty", func(t *testing.T) {
		t.Parallel()
		s := Start(t)
		setKey(t, s.Client(t), "key")
		addr := s.Addr()
		s.Kill()
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			t.Error("it still listens")
		}
		s.Restart()
		if s.Addr() != addr {
			t.Errorf("moved from %s to %s", addr, s.Addr())
		}
		if exists(t, s.Client(t), "key") {
			t.Error("it still knows the key")
		}
	})

	t.Run("a running server restarts too", func(t *testing.T) {
		t.Parallel()
		s := Start(t)
		client := s.Client(t)
		setKey(t, client, "key")
		s.Restart()
		if exists(t, client, "key") {
			t.Error("it still knows the key")
		}
	})
}

func TestShared(t *testing.T) {
	t.Run("is one server for all tests", func(t *testing.T) {
		t.Parallel()
		if one, other := Shared(t), Shared(t); one != other {
			t.Errorf("one on %s, the other on %s", one.Addr(), other.Addr())
		}
	})

	t.Run("cannot be broken", func(t *testing.T) {
		t.Parallel()
		s := Shared(t)
		for name, fault := range map[string]func(){"Pause": s.Pause, "Resume": s.Resume, "Kill": s.Kill, "Restart": s.Restart} {
			func() {
				defer func() {
					if advice := fmt.Sprint(recover()); !strings.Contains(advice, "redistest.Start") {
						t.Errorf("%s: %s", name, advice)
					}
				}()
				fault()
			}()
		}
		s.Client(t)
	})

	t.Run("needs Main, which stops it", func(t *testing.T) {
		t.Parallel()
		var mine sharedServer
		if _, err := mine.get(); err == nil || !strings.Contains(err.Error(), "redistest.Main(m)") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestMainLine(t *testing.T) {
	t.Run("stops the shared server, then checks", func(t *testing.T) {
		t.Parallel()
		var mine sharedServer
		var server *Server
		var order []string
		code := mine.run(testsFunc(func() int {
			order = append(order, "tests")
			var err error
			if server, err = mine.get(); err != nil {
				t.Fatal(err)
			}
			return 0
		}), func() error {
			order = append(order, "check")
			awaitEnd(t, server)
			return nil
		})
		if code != 0 || !slices.Equal(order, []string{"tests", "check"}) {
			t.Errorf("exit code %d after %v", code, order)
		}
		if _, err := os.Stat(server.dir); !os.IsNotExist(err) {
			t.Errorf("the server's folder is still there: %v", err)
		}
	})

	t.Run("fails when a check does", func(t *testing.T) {
		t.Parallel()
		var mine sharedServer
		passed := testsFunc(func() int { return 0 })
		if code := mine.run(passed, func() error { return os.ErrInvalid }); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
	})

	t.Run("keeps the exit code of failed tests, and checks no further", func(t *testing.T) {
		t.Parallel()
		var mine sharedServer
		failed := testsFunc(func() int { return 2 })
		check := func() error { t.Error("checked"); return nil }
		if code := mine.run(failed, check); code != 2 {
			t.Errorf("exit code %d, want 2", code)
		}
	})
}

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

// testsFunc takes the place of *testing.M.
type testsFunc func() int

func (f testsFunc) Run() int { return f() }

func awaitEnd(t *testing.T, s *Server) {
	t.Helper()
	select {
	case <-s.process.Exited():
	case <-time.After(10 * time.Second):
		t.Errorf("process %d still runs", s.process.Pid())
	}
}

func config(t *testing.T, client *redis.Client, name string) string {
	t.Helper()
	settings, err := client.ConfigGet(t.Context(), name).Result()
	if err != nil {
		t.Fatal(err)
	}
	return settings[name]
}

func setKey(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	if err := client.Set(t.Context(), key, "here", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, client *redis.Client, key string) bool {
	t.Helper()
	n, err := client.Exists(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}
