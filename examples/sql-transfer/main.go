// Command sql-transfer moves money between two accounts in an SQLite file, under locks, with the
// fence of each lock claimed in the transaction. It makes a tour of the faults: it starts a Redis
// in this process, plays the clients, and prints their results.
//
//	go run ./examples/sql-transfer
package main

import (
	"context"
	"log"
	"os"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // go-redis would log each failed attempt; the errors show the failure
	if err := tour(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}
