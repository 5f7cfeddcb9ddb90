package recipes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// replica is a process of a service. Eight of its callers want the token at the same time.
var replica = proc.Register("replica", func(args []string) {
	client := redis.NewClient(&redis.Options{Addr: args[0]})
	l, err := locker.New(client)
	if err != nil {
		panic(err)
	}
	tokens := recipes.Tokens{Redis: client, L: l, Key: args[2], Exchange: func(ctx context.Context, refresh string) (token recipes.Token, err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, args[1]+"?refresh="+refresh, http.NoBody)
		if err != nil {
			return token, err
		}
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return token, err
		}
		defer reply.Body.Close()
		return token, json.NewDecoder(reply.Body).Decode(&token)
	}}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			token, err := tokens.Get(context.Background())
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			fmt.Println("token", token.Access)
		})
	}
	callers.Wait()
	_ = l.Close(context.Background())
})

// upstream issues tokens. Each refresh token can be spent once.
type upstream struct {
	*httptest.Server
	mu      sync.Mutex
	spent   []string
	entered chan struct{} // a value for each request
	stuck   chan struct{} // if not nil, the first request waits until it is closed, and spends nothing
}

func newUpstream(t *testing.T, stuck chan struct{}) *upstream {
	u := &upstream{entered: make(chan struct{}, 20), stuck: stuck}
	first := make(chan struct{}, 1)
	first <- struct{}{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.entered <- struct{}{}
		select {
		case <-first:
			if u.stuck != nil {
				<-u.stuck
				return
			}
		default:
		}
		u.mu.Lock()
		u.spent = append(u.spent, r.URL.Query().Get("refresh"))
		n := len(u.spent)
		u.mu.Unlock()
		token := recipes.Token{Access: fmt.Sprint("access-", n), Refresh: fmt.Sprint("refresh-", n), Expires: time.Now().Add(time.Hour)}
		_ = json.NewEncoder(w).Encode(token)
	}))
	t.Cleanup(u.Close)
	return u
}

func storeOldToken(t *testing.T, server *redistest.Server) {
	t.Helper()
	text, err := json.Marshal(recipes.Token{Access: "access-0", Refresh: "refresh-0", Expires: time.Now().Add(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Client(t).Set(t.Context(), t.Name(), text, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestTwoReplicasRefreshATokenWithOneCall(t *testing.T) {
	t.Parallel()
	server, u := redistest.Shared(t), newUpstream(t, nil)
	storeOldToken(t, server)
	one, two := replica.Start(t, server.Addr(), u.URL, t.Name()), replica.Start(t, server.Addr(), u.URL, t.Name())
	for range 8 {
		one.Expect(t, "token access-1")
		two.Expect(t, "token access-1")
	}
	if len(u.spent) != 1 {
		t.Errorf("tokens spent: %v", u.spent)
	}
}

// The replica that refreshes is killed during its call. When its lease is over, another replica
// refreshes the token.
func TestAReplicaThatIsKilledWhileItRefreshesIsReplaced(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	server, u := redistest.Shared(t), newUpstream(t, stuck)
	t.Cleanup(func() { close(stuck) }) // before the server closes, which waits for its handlers
	storeOldToken(t, server)
	dead := replica.Start(t, server.Addr(), u.URL, t.Name())
	<-u.entered
	dead.Kill()
	next := replica.Start(t, server.Addr(), u.URL, t.Name())
	for range 8 {
		next.Expect(t, "token access-1")
	}
	if len(u.spent) != 1 || u.spent[0] != "refresh-0" {
		t.Errorf("tokens spent: %v", u.spent)
	}
}
