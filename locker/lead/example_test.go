package lead_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// One of several processes relays an outbox. The others wait, and one of them continues when the
// leader stops.
func Example() {
	l, err := lockertest.NewMemory().NewLocker() // in a service: locker.New
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background()) // in a service: signal.NotifyContext
	err = lead.Run(ctx, l, locker.Rule{Key: "leader:outbox"}, func(ctx context.Context) error {
		fmt.Println("this process leads")
		stop() // SIGTERM
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
	// Output:
	// this process leads
	// <nil>
}

// A Leader shows the rest of the program whether this process leads. With StepDown, the process
// lets another process lead.
func ExampleLeader() {
	l, err := lockertest.NewMemory().NewLocker()
	if err != nil {
		log.Fatal(err)
	}
	leader, err := lead.New(l, locker.Rule{Key: "leader:outbox", TTL: 5 * time.Second, EndAfter: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- leader.Run(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	}()
	term := <-leader.Terms()
	_, leading := leader.Leading()
	fmt.Println("leads:", leading, "over:", !term.Ended.IsZero())
	leader.StepDown("this machine is drained")
	term = <-leader.Terms()
	fmt.Println(term.Cause)
	stop()
	fmt.Println(<-ended)
	// Output:
	// leads: true over: false
	// latchkit: lead leader:outbox: this process has stepped down: this machine is drained
	// <nil>
}
