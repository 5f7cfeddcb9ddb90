package delegate_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A service holds order:42 and calls the inventory service, which locks order:42 as well. The call
// joins the lease of its caller. Without the delegation, the call would wait for its caller.
func Example() {
	orders, err := locker.New(lockertest.NewMemory()) // or NewSingle, on the Redis of both services
	if err != nil {
		log.Fatal(err)
	}
	defer orders.Close(context.Background())
	inventory := orders // in the other process a Locker of its own
	rule := locker.Rule{Key: "order:42"}

	receiver, err := delegate.NewReceiver(inventory)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := receiver.Request(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err = locker.Run(r.Context(), receiver, rule, func(context.Context) error {
			fmt.Println("the inventory works under the lease of the order service")
			return nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	}))
	defer server.Close()

	sender, err := delegate.NewSender()
	if err != nil {
		log.Fatal(err)
	}
	transport, err := delegate.Transport(nil, sender, server.Listener.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Transport: transport}
	err = locker.Run(context.Background(), orders, rule, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/reserve", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		fmt.Println(response.Status)
		return response.Body.Close()
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// the inventory works under the lease of the order service
	// 200 OK
}

// With a transport other than HTTP, the program itself puts the Sender's token into the
// message.
func ExampleSender_Token() {
	l, err := locker.New(lockertest.NewMemory())
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close(context.Background())
	signing := delegate.WithSigning([]byte("a key that both services share"))
	sender, err := delegate.NewSender(signing)
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := delegate.NewReceiver(l, signing)
	if err != nil {
		log.Fatal(err)
	}
	rule := locker.Rule{Key: "order:42"}
	err = locker.Run(context.Background(), l, rule, func(ctx context.Context) error {
		token, err := sender.Token(ctx) // travels with the message
		if err != nil {
			return err
		}
		received, err := receiver.With(context.Background(), token)
		if err != nil {
			return err
		}
		return locker.Run(received, receiver, rule, func(inner context.Context) error {
			outside, _ := locker.FromContext(ctx)
			inside, _ := locker.FromContext(inner)
			fmt.Println("the same fence:", inside.Fence() == outside.Fence())
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: the same fence: true
}
