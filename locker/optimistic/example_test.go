package optimistic_test

import (
	"context"
	"log"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker/optimistic"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	err := optimistic.Update(context.Background(), client, "stock:apple", func(_ context.Context, old []byte) ([]byte, error) {
		n, err := strconv.Atoi(string(old)) // perhaps several times
		if err != nil {
			return nil, err
		}
		return []byte(strconv.Itoa(n - 1)), nil
	})
	if err != nil {
		log.Fatal(err) // errors.Is: optimistic.ErrConflict, ErrUnknown
	}
}

func ExampleUpdateAll() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	keys := []string{"{account}:3", "{account}:7"} // one hash tag, for a Cluster
	err := optimistic.UpdateAll(context.Background(), client, keys, func(_ context.Context, old map[string][]byte) (map[string][]byte, error) {
		return map[string][]byte{keys[0]: old[keys[1]], keys[1]: old[keys[0]]}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
