package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// A program has the values of the flags.
type program struct {
	http   string // the address of the page
	scene  string // "": all, on the page
	trace  bool
	assert bool
	seed   uint64
	redis  string // "": a Redis in this process
	dsn    string // "": an SQLite file in a temporary folder
}

const usage = `Scenes shows on a page in a browser what a lock is for. You can pause and kill the process that holds the lock.
With -scene it runs one scene here. Nothing has to be installed.

Usage: go run ./examples/scenes [flags]

`

const usageEnd = `
Examples:
  go run ./examples/scenes
  go run ./examples/scenes -scene paused -trace
  go run ./examples/scenes -trace
  go run ./examples/scenes -redis redis://localhost:6379 -dsn postgres://localhost/shop

In a database of yours it makes the tables scenes_stock, scenes_orders, scenes_documents and
scenes_results, and leaves them empty. In a Redis of yours its locks are named {scenes}:…; one
counter stays behind, latchkit:f:….
`

// parse reads the flags. Its errors explain how to correct the command line. With the flag -h,
// parse prints the usage of the program.
func parse(args []string, help io.Writer) (*program, error) {
	p := &program{}
	f := flag.NewFlagSet("scenes", flag.ContinueOnError)
	// the package flag must not print the error, because the caller prints it
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.StringVar(&p.http, "http", "127.0.0.1:7321", "show the scenes on a page at this `address`")
	f.StringVar(&p.scene, "scene", "", "run one `scene` in the terminal: "+strings.Join(sceneNames(), ", "))
	f.BoolVar(&p.trace, "trace", false, "with -scene, print what happens; else the trace of a purchase that waited for the lock")
	f.BoolVar(&p.assert, "assert", false, "with -scene, exit with 1 unless it ends as told")
	f.Uint64Var(&p.seed, "seed", 1, "decides when buyers click and how long their payments take")
	f.StringVar(&p.redis, "redis", "", "`URL` of a real Redis, such as redis://localhost:6379 (default: one inside this process)")
	f.StringVar(&p.dsn, "dsn", "", "a real `database`: the path of an SQLite file, or postgres://… (default: SQLite in a temporary folder)")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(help, usage)
		f.SetOutput(help)
		f.PrintDefaults()
		fmt.Fprint(help, usageEnd)
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("scenes: %w; -h lists the flags", err)
	case f.NArg() > 0:
		return nil, fmt.Errorf("scenes: unexpected argument %q; -h lists the flags", f.Arg(0))
	case p.scene != "" && findScene(p.scene) == nil:
		return nil, fmt.Errorf("scenes: -scene %s: there are the scenes %s", p.scene, strings.Join(sceneNames(), ", "))
	case p.assert && p.scene == "":
		return nil, errors.New("scenes: -assert needs a -scene")
	}
	return p, nil
}

// onPage reports whether the program shows its page, until somebody ends it.
func (p *program) onPage() bool { return p.scene == "" && !p.trace }

func sceneNames() (names []string) {
	for _, sc := range scenes {
		names = append(names, sc.name)
	}
	return names
}
