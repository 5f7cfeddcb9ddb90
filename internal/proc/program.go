package proc

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"testing"
)

// environment names the variable that tells a test binary which program it is.
const environment = "LATCHKIT_TEST_PROGRAM"

var (
	programs = map[string]func(args []string){}

	// inMain says that this process went through Main and is the parent. Without
	// that a child would run the tests, and start children that run the tests.
	inMain bool
)

// Program is a main that the test binary can run instead of its tests. It is
// made by [Register].
type Program struct{ name string }

// Register names a main. Call it for a package-level variable, so that child
// and parent both know it. The child exits with 0 when main returns.
func Register(name string, main func(args []string)) Program {
	if _, taken := programs[name]; taken {
		panic(fmt.Sprintf("proc: the program %q is registered twice; names are per test binary", name))
	}
	programs[name] = main
	return Program{name}
}

// Main belongs at the start of TestMain: in a child it runs the child's program
// and does not return, in the parent it hands m back.
func Main(m *testing.M) *testing.M {
	name, child := os.LookupEnv(environment)
	if !child {
		inMain = true
		return m
	}
	main, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "proc: no program %q: register it for a package-level variable, not inside a test\n", name)
		os.Exit(2)
	}
	main(os.Args[1:])
	os.Exit(0)
	return nil
}

var parent = sync.OnceValue(func() *bufio.Scanner { return bufio.NewScanner(os.Stdin) })

// Listen returns the next line that the parent sent; it is for the child. When
// the parent is gone there is nobody left to serve: the child exits.
func Listen() string {
	if !parent().Scan() {
		os.Exit(0)
	}
	return parent().Text()
}
