package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// sale has the values of the flags: what is sold, to how many buyers, and on which servers.
type sale struct {
	items  int
	buyers int
	seed   uint64
	procs  int
	redis  string // "": a Redis in this process
	dsn    string // "": an SQLite file in a temporary folder
	trace  bool
	assert bool
	scene  string // "": the sale, three times in turn
	http   string // the address of the page; "": no page
}

const usage = `Flashsale sells a few items to many buyers at once, three times: without a lock, with the usual SETNX + DEL
lock, and with latchkit. Then it counts the orders. Nothing has to be installed. With -http it shows scenes on a page
in a browser, where you can pause and kill the process that holds the lock. With -scene it runs one of them here.

Usage: go run ./examples/flashsale [flags]

`

const usageEnd = `
Examples:
  go run ./examples/flashsale -http 127.0.0.1:7321
  go run ./examples/flashsale -scene paused -trace
  go run ./examples/flashsale -trace
  go run ./examples/flashsale -procs 3 -redis redis://localhost:6379
  go run ./examples/flashsale -redis redis://localhost:6379 -dsn postgres://localhost/shop

In a database of yours it makes the tables flashsale_stock, flashsale_orders, flashsale_documents and
flashsale_results, and leaves them empty. In a Redis of
yours its locks are named {flashsale}:…; one counter stays behind, latchkit:f:….
`

// parse reads the flags. Its errors explain how to correct the command line. With the flag -h,
// parse prints the usage of the program.
func parse(args []string, help io.Writer) (*sale, error) {
	s := &sale{}
	f := flag.NewFlagSet("flashsale", flag.ContinueOnError)
	// the package flag must not print the error, because the caller prints it
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.IntVar(&s.items, "items", 100, "how many items are in stock")
	f.IntVar(&s.buyers, "buyers", 300, "how many buyers want one")
	f.Uint64Var(&s.seed, "seed", 1, "decides when buyers click and how long their payments take")
	f.IntVar(&s.procs, "procs", 1, "how many processes sell; more than 1 needs -redis")
	f.StringVar(&s.redis, "redis", "", "`URL` of a real Redis, such as redis://localhost:6379 (default: one inside this process)")
	f.StringVar(&s.dsn, "dsn", "", "a real `database`: the path of an SQLite file, or postgres://… (default: SQLite in a temporary folder)")
	f.BoolVar(&s.trace, "trace", false, "print the trace of one request that waited for the lock; with -scene, what happens")
	f.BoolVar(&s.assert, "assert", false, "exit with 1 unless latchkit sold exactly the stock and no lock oversold; with -scene, unless it ends as told")
	f.StringVar(&s.scene, "scene", "", "run one `scene` in the terminal: "+strings.Join(sceneNames(), ", "))
	f.StringVar(&s.http, "http", "", "show the scenes on a page at this `address`, such as 127.0.0.1:7321")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(help, usage)
		f.SetOutput(help)
		f.PrintDefaults()
		fmt.Fprint(help, usageEnd)
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("flashsale: %w; -h lists the flags", err)
	case f.NArg() > 0:
		return nil, fmt.Errorf("flashsale: unexpected argument %q; -h lists the flags", f.Arg(0))
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("flashsale: %w", err)
	}
	return s, nil
}

func (s *sale) validate() error {
	switch {
	case s.scene != "" && findScene(s.scene) == nil:
		return fmt.Errorf("-scene %s: there are the scenes %s", s.scene, strings.Join(sceneNames(), ", "))
	case s.scene != "" && s.http != "":
		return errors.New("give -scene or -http: the page has a button for each scene")
	case s.items < 1:
		return fmt.Errorf("-items %d: there must be at least 1 item to sell", s.items)
	case s.buyers < 1 || s.buyers > 100_000:
		return fmt.Errorf("-buyers %d: give 1 to 100000", s.buyers)
	case s.procs < 1 || s.procs > 64:
		return fmt.Errorf("-procs %d: give 1 to 64 processes", s.procs)
	case s.procs > 1 && s.redis == "":
		return fmt.Errorf("-procs %d needs a Redis that all processes reach; start one and add -redis redis://localhost:6379", s.procs)
	case s.assert && s.buyers <= s.items:
		return fmt.Errorf("-assert needs more buyers (%d) than items (%d): otherwise nothing can be oversold", s.buyers, s.items)
	}
	return nil
}

func sceneNames() (names []string) {
	for _, sc := range scenes {
		names = append(names, sc.name)
	}
	return names
}

// String describes the sale in one line.
func (s *sale) String() string {
	where := []string{"a Redis inside this process", "SQLite in a temporary folder"}
	if s.redis != "" {
		where[0] = "your Redis"
	}
	if s.dsn != "" {
		where[1] = "your database"
	}
	shops := "one Gin server"
	if s.procs > 1 {
		shops = fmt.Sprintf("%d Gin servers, each in its own process", s.procs)
	}
	return fmt.Sprintf("%d items, %d buyers, %s, %s.", s.items, s.buyers, shops, strings.Join(where, ", "))
}
