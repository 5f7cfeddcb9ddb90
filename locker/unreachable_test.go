package locker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// closedPort returns the options of a client whose server is down.
func closedPort(t *testing.T) *redis.Options {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	return &redis.Options{Addr: port.Addr().String()}
}

func wrongCertificate(t *testing.T) *redis.Options {
	return &redis.Options{Addr: redistest.StartTLS(t).Addr(), TLSConfig: &tls.Config{ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}}
}

func plainToTLS(t *testing.T) *redis.Options {
	return &redis.Options{Addr: redistest.StartTLS(t).Addr()}
}

func replica(t *testing.T) *redis.Options {
	master := redistest.Start(t)
	return &redis.Options{Addr: redistest.Start(t, "--replicaof", "127.0.0.1", fmt.Sprint(master.Port())).Addr()}
}

func noPassword(t *testing.T) *redis.Options {
	return &redis.Options{Addr: redistest.Start(t, "--requirepass", "secret").Addr()}
}

func wrongPassword(t *testing.T) *redis.Options {
	return &redis.Options{Addr: redistest.Start(t, "--requirepass", "secret").Addr(), Password: "guess"}
}

// full returns the options of a client whose server has as many connections as it accepts.
func full(t *testing.T) *redis.Options {
	server := redistest.Start(t)
	client := server.Client(t)
	if err := client.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	return &redis.Options{Addr: server.Addr()}
}

// loading returns the options of a client whose server reads its data for half a minute, a
// millisecond for each key.
func loading(t *testing.T) *redis.Options {
	server := redistest.Start(t, "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
	client := server.Client(t)
	fill := "for i = 1, 30000 do redis.call('SET', 'data:' .. i, string.rep('x', 100)) end"
	client.Eval(t.Context(), fill, nil)
	if err := client.Save(t.Context()).Err(); err != nil || client.DBSize(t.Context()).Val() < 30000 {
		t.Fatal("the server has no data to load", err)
	}
	server.Restart()
	return &redis.Options{Addr: server.Addr()}
}

// A route whose callers wait for a fifth of a second never waits until its client gives up. Its
// operator still reads in the errors why the server does not serve it.
func TestErrorsOfShortWaitsNameTheCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server func(*testing.T) *redis.Options
		want   string
	}{
		"the port is closed":           {closedPort, "connection refused"},
		"the certificate is not known": {wrongCertificate, "x509"},
		"the server is a replica":      {replica, "READONLY"},
		"the client has no password":   {noPassword, "check the user and the password"},
		"the password is wrong":        {wrongPassword, "WRONGPASS"},
		"the server is full":           {full, "maxclients"},
		"the server is loading":        {loading, "LOADING"},
		"the server wants TLS":         {plainToTLS, "EOF"},
	} {
		for kind, open := range map[string]func(*redis.Options) (*locker.Engine, error){
			"Open": func(o *redis.Options) (*locker.Engine, error) { return locker.Open(o) },
			"New":  func(o *redis.Options) (*locker.Engine, error) { return locker.New(redis.NewClient(o)) },
			"New with ContextTimeoutEnabled": func(o *redis.Options) (*locker.Engine, error) {
				o.ContextTimeoutEnabled = true
				return locker.New(redis.NewClient(o))
			},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				l, err := open(c.server(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close(t.Context()) })
				shortWaitsName(t, l, c.want)
			})
		}
	}
}

// shortWaitsName checks that short waits through l fail with ErrUnavailable, and that their errors
// contain the text cause.
func shortWaitsName(t *testing.T, l *locker.Engine, cause string) {
	t.Helper()
	// go-redis itself needs half a second until it knows.
	eventually(t, "an error names the cause", func() bool {
		err := waitShortly(t, l)
		return err == nil || strings.Contains(err.Error(), cause)
	})
	ctx := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), shortWait)
		defer cancel()
		return locker.Run(ctx, l, locker.Rule{Key: "order:1"}, func(context.Context) error { return nil })
	}
	for range 2 {
		for way, err := range map[string]error{"Wait": waitShortly(t, l), "ctx": ctx()} {
			if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), cause) {
				t.Errorf("%s: %v, want ErrUnavailable with %q", way, err, cause)
			}
		}
	}
}

const shortWait = 200 * time.Millisecond

func waitShortly(t *testing.T, l *locker.Engine) error {
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: "order:1", Wait: shortWait})
	if err == nil {
		release(t, lease)
	}
	return err
}

func TestErrorsOfShortWaitsNameTheCauseOnSentinelAndCluster(t *testing.T) {
	t.Parallel()
	addrs := []string{closedPort(t).Addr}
	for _, kind := range []string{"Sentinel", "Cluster"} {
		l, err := reach(kind, addrs, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(t.Context()) })
		shortWaitsName(t, l, "connection refused")
	}
}

// When the server has answered again, an earlier cause explains nothing any more. Nor does the
// refusal of one key.
func TestErrorsNameNoCauseThatIsOver(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, err := locker.Open("redis://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	server.Kill()
	shortWaitsName(t, l, "connection refused")
	server.Restart()
	eventually(t, "the server serves again", func() bool { return waitShortly(t, l) == nil })
	server.Client(t).HSet(t.Context(), "data", "field", "value")
	_, err = l.Acquire(t.Context(), locker.Rule{Key: "data"})
	wantErr(t, err, "data", locker.ErrInvalidKey)
	server.Pause()
	if err := waitShortly(t, l); !errors.Is(err, locker.ErrUnavailable) || strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("the server hangs, and the error is: %v", err)
	}
}
