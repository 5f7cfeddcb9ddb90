package grpclock_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/shop"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// process is one process of a service: a server, with a Locker of its own.
type process struct {
	address string
	locker  *locker.Engine
	calls   *lockertest.Recorder
	server  *grpc.Server
	served  chan error
}

func startProcess(t *testing.T, store *lockertest.Memory, handler func(ctx context.Context, o *shop.Order) (*shop.Receipt, error)) process {
	t.Helper()
	p := process{calls: new(lockertest.Recorder), served: make(chan error, 1)}
	p.locker = lockertest.NewLocker(t, store.NewProcess(), locker.WithObserver(p.calls))
	rules := grpclock.FromDescriptors()
	options, err := grpclock.ServerOptions(p.locker, rules)
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer(options...)
	t.Cleanup(p.server.Stop)
	shop.RegisterShopServer(p.server, &service{unary: handler})
	if err := rules.Bind(p.server); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()
	go func() { p.served <- p.server.Serve(listener) }()
	return p
}

// shutDown stops the process as the documents recommend.
func (p process) shutDown(ctx context.Context) error {
	drained := make(chan error, 1)
	go func() { drained <- p.locker.Drain(ctx) }()
	p.server.GracefulStop()
	return errors.Join(<-drained, p.locker.Close(ctx), <-p.served)
}

// If Drain ended before GracefulStop began, each client would come back over its connection to the
// process that drains, until the longest handler has ended.
func TestClientsOfAProcessThatDrainsMeetAnotherProcess(t *testing.T) {
	store := lockertest.NewMemory()
	holds, finish := make(chan struct{}), make(chan struct{})
	old := startProcess(t, store, func(ctx context.Context, o *shop.Order) (*shop.Receipt, error) {
		if o.GetOrderId() == "slow" {
			close(holds)
			<-finish
		}
		return receipt(ctx), ctx.Err()
	})
	next := startProcess(t, store, func(ctx context.Context, _ *shop.Order) (*shop.Receipt, error) {
		return &shop.Receipt{Key: "from the other process"}, ctx.Err()
	})
	names := manual.NewBuilderWithScheme("processes")
	names.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: old.address}, {Addr: next.address}}})
	conn, err := grpc.NewClient(names.Scheme()+":///shop", grpc.WithResolvers(names), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := shop.NewShopClient(conn)
	send := func(id string) chan error {
		answer := make(chan error, 1)
		go func() { _, err := client.Wait(t.Context(), &shop.Order{OrderId: id}); answer <- err }()
		return answer
	}

	slow := send("slow")
	<-holds
	waits := send("slow")
	locktest.Eventually(t, "the second call waits", func() bool { return old.calls.Begun(locker.OpAcquire) == 2 })
	stopped := make(chan error, 1)
	go func() { stopped <- old.shutDown(t.Context()) }()
	if answer := answerOf(<-waits); answer != locktest.Refused {
		t.Errorf("the call that waits is answered: %s", answer)
	}
	locktest.Eventually(t, "a call is served by the other process", func() bool {
		got, err := client.Wait(t.Context(), &shop.Order{OrderId: "free"})
		return err == nil && got.GetKey() == "from the other process"
	})
	select {
	case err := <-stopped:
		t.Error("the process has stopped before its handler", err)
	default:
	}
	close(finish)
	if err := errors.Join(<-slow, <-stopped); err != nil {
		t.Error(err)
	}
}
