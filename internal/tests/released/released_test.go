package released

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

const root = "github.com/latchkit/latchkit"

var published = flag.String("published", "", "a version that the public module proxy has, such as v0.1.0: test it instead of the present files")

func TestMain(m *testing.M) { redistest.Main(m) }

// A stranger has Go, a Redis, the README and the pages of pkg.go.dev. What they show works as it
// stands: the first program, the Examples of each module of contrib, and latchctl.
func TestAStrangerUsesARelease(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	redis := redistest.Shared(t).Addr()

	t.Run("the first program", func(t *testing.T) {
		s := s.in(t)
		for _, command := range regexp.MustCompile(`(?m)^go (get \S+)`).FindAllStringSubmatch(s.readme, -1) {
			s.goCommand(strings.Fields(strings.Replace(command[1], "@latest", "@"+s.version, 1))...)
		}
		_, program, _ := strings.Cut(s.readme, "<!-- example: examples/quickstart/main.go -->\n```go\n")
		program, _, _ = strings.Cut(program, "```\n")
		write(t, filepath.Join(s.folder, "main.go"), strings.Replace(program, "localhost:6379", redis, 1))
		if out := s.goCommand("run", "."); out != "order 42 is mine\n" {
			t.Errorf("the first program prints %q", out)
		}

		// A program that imports locker alone requires and links these modules, and no others.
		alone := []string{"github.com/cespare/xxhash/v2", root, "github.com/redis/go-redis/v9", "go.uber.org/atomic", "golang.org/x/sys"}
		var required []string
		for line := range strings.Lines(s.goCommand("mod", "graph")) {
			if of, requires, _ := strings.Cut(line, " "); of == "example.com/shop" && !strings.HasPrefix(requires, "go@") {
				name, _, _ := strings.Cut(requires, "@")
				required = append(required, name)
			}
		}
		linked := strings.Fields(s.goCommand("list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "."))
		slices.Sort(linked)
		if linked = slices.Compact(linked); !slices.Equal(linked, alone) || !slices.Equal(required, alone) {
			t.Errorf("the first program requires %q and links %q, want %q", required, linked, alone)
		}
	})

	names, err := filepath.Glob(filepath.Join(checkout(t), "contrib", "*"))
	if err != nil || len(names) == 0 {
		t.Fatal("no modules in contrib", err)
	}
	for _, name := range names {
		contrib := path.Join("contrib", filepath.Base(name))
		t.Run(filepath.Base(name), func(t *testing.T) {
			s := s.in(t)
			module := root + "/" + contrib
			s.goCommand("get", module+"@"+s.version)
			examples := filepath.Join(strings.TrimSpace(s.goCommand("list", "-m", "-f", "{{.Dir}}", module)), "example_test.go")
			write(t, filepath.Join(s.folder, "example_test.go"), read(t, examples))
			s.goCommand("get", "-t", ".")
			if out := s.goCommand("test", "-vet=off", "-run", "Example", "."); !strings.HasPrefix(out, "ok ") {
				t.Errorf("the Examples: %s", out)
			}
			for line := range strings.Lines(s.goCommand("list", "-m", "all")) {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, root) && !strings.HasSuffix(line, " "+s.version) {
					t.Errorf("the stranger builds with %s, want %s", line, s.version)
				}
			}
		})
	}

	t.Run("latchctl", func(t *testing.T) {
		s := s.in(t)
		s.goCommand("install", root+"/cmd/latchctl@"+s.version)
		latchctl := filepath.Join(s.cache, "bin", "latchctl")
		if out := run(t, s.folder, s.env, latchctl, "--version"); out != "latchctl version "+s.version+"\n" {
			t.Errorf("latchctl --version prints %q", out)
		}
		if out := run(t, s.folder, s.env, latchctl, "doctor", "--node", "redis://"+redis); !strings.Contains(out, "a key was locked, handed to a waiter") {
			t.Errorf("latchctl doctor prints\n%s", out)
		}
	})
}

// stranger is a user, whose module cache was empty when the test began.
type stranger struct {
	t             *testing.T
	version       string
	readme        string
	cache, folder string
	env           []string // Go's settings
}

func newStranger(t *testing.T) stranger {
	t.Helper()
	dir := checkout(t)
	s := stranger{t: t, version: *published, readme: read(t, filepath.Join(dir, "README.md")), cache: t.TempDir()}
	s.env = []string{"GOWORK=off", "GOFLAGS=-mod=readonly", "GOMODCACHE=" + filepath.Join(s.cache, "mod"), "GOBIN=" + filepath.Join(s.cache, "bin")}
	if s.version == "" {
		s.version = regexp.MustCompile(`(?m)^## (v\S+)`).FindStringSubmatch(read(t, filepath.Join(dir, "CHANGELOG.md")))[1]
		// What is not latchkit's comes from this machine's cache, if it is there, as from a proxy.
		own := strings.Fields(run(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY"))
		s.env = append(s.env, "GOSUMDB=off", "GOPROXY=file://"+release(t, s.version)+",file://"+own[0]+"/cache/download,"+own[1])
	}
	t.Cleanup(func() { // modules are read-only
		err := filepath.WalkDir(s.cache, func(name string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(name, 0o700)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return s
}

// in returns the stranger of a subtest, in the folder of a new module.
func (s stranger) in(t *testing.T) stranger {
	t.Helper()
	s.t, s.folder = t, t.TempDir()
	s.goCommand("mod", "init", "example.com/shop")
	return s
}

func (s stranger) goCommand(args ...string) string {
	s.t.Helper()
	return run(s.t, s.folder, s.env, "go", args...)
}
