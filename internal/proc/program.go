package proc

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"testing"
)

// environment is the environment variable that names the program to run in place of the tests.
const environment = "LATCHKIT_TEST_PROGRAM"

var (
	programs = map[string]func(args []string){}

	// inMain is true if this process is the parent and has called Main. A child must not run the
	// tests, because the tests would start further children.
	inMain bool
)

// Program is a main that the test binary can run instead of its tests. [Register] makes a Program.
type Program struct{ name string }

// Register registers a main by name. Call Register in the declaration of a package-level variable,
// so that child and parent both register the main. The child exits with 0 when main returns.
func Register(name string, main func(args []string)) Program {
	if _, taken := programs[name]; taken {
		panic(fmt.Sprintf("proc: the program %q is registered twice; names are per test binary", name))
	}
	programs[name] = main
	return Program{name}
}

// Main is called at the start of TestMain. In a child, Main runs the child's program and does not
// return. In the parent, Main returns m.
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

// Listen is for the child: it returns the next line that the parent has sent. If the parent has
// ended, Listen exits the child.
func Listen() string {
	if !parent().Scan() {
		os.Exit(0)
	}
	return parent().Text()
}
