package rueidisclient_test

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/latchkit/latchkit/contrib/rueidisclient"
	"github.com/latchkit/latchkit/locker"
)

func Example() {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	client, err := rueidisclient.New(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := locker.New(client)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locker.Run(context.Background(), l, locker.Rule{Key: "report"}, func(ctx context.Context) error {
		return nil // … while ctx has not ended, no other caller is here …
	})
	fmt.Println(err)
}
