// Command sql-transfer moves money between two accounts in an SQLite file. Each transfer holds
// a lock for each account, and claims the fences of both locks in its transaction. The program
// makes a tour of the faults: it starts a Redis in this process, acts as the clients, and
// prints their results.
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
	// go-redis would log each failed attempt, but the errors show the failures anyway.
	logging.Disable()
	if err := tour(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}
