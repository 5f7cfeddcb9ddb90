// Command enrol declares that the servers of a new quorum are new. Run it once, when the servers
// are installed, and never from a service.
//
//	go run ./examples/enrol redis://10.0.0.1:6379 redis://10.0.0.2:6379 redis://10.0.0.3:6379
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var nodes []locker.Client
	for _, url := range os.Args[1:] {
		options, err := redis.ParseURL(url)
		if err != nil {
			log.Fatal(err)
		}
		nodes = append(nodes, redis.NewClient(options))
	}
	// All servers must answer. The error names each server that does not vote, and why.
	if err := locker.EnrollRedlock(ctx, nodes); err != nil {
		log.Fatal(err)
	}
	log.Print("all servers vote")
}
