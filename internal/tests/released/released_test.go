package released

import (
	"archive/zip"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root    = "github.com/latchkit/latchkit"
	version = "v0.99.0"
)

// A stranger's cache has nothing that other tests have compiled, so this takes minutes; .ci/all does it.
var compile = flag.Bool("compile", false, "compile latchctl, and run it; otherwise the go command only says how")

// A user can get every module of contrib as a released version, and build with it. The user can
// also install latchctl. The proxy is a folder with the present files after .ci/prepare-release.
func TestModulesAsReleased(t *testing.T) {
	t.Parallel()
	proxy, modules := release(t)
	s := stranger{t: t, proxy: proxy, cache: t.TempDir(), folder: t.TempDir()}
	s.run("mod", "init", "example.com/shop")
	var imports strings.Builder
	for _, module := range modules {
		if strings.HasPrefix(module, root+"/contrib/") {
			s.run("get", module+"@"+version)
			fmt.Fprintf(&imports, "import _ %q\n", module)
		}
	}
	program := "package main\n\n" + imports.String() + "import _ \"" + root + "/locker\"\n\nfunc main() {}\n"
	if err := os.WriteFile(filepath.Join(s.folder, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	// make test-all checks each module alone, so here it is enough that all packages are found.
	s.run("list", "-deps", ".")
	for line := range strings.Lines(s.run("list", "-m", "-f", "{{.Path}} {{.Version}}{{with .Replace}} replaced{{end}}", "all")) {
		if strings.HasPrefix(line, root) && !strings.HasSuffix(strings.TrimSpace(line), " "+version) {
			t.Errorf("the stranger builds with %s, want %s", strings.TrimSpace(line), version)
		}
	}

	if !*compile {
		s.run("install", "-n", root+"/cmd/latchctl@"+version)
		return
	}
	s.run("install", root+"/cmd/latchctl@"+version)
	out, err := exec.CommandContext(t.Context(), filepath.Join(s.cache, "bin", "latchctl"), "--version").Output()
	if err != nil || strings.TrimSpace(string(out)) != "latchctl version "+version {
		t.Errorf("latchctl --version prints %q, %v", out, err)
	}
}

// stranger is a user with a new module, and with an empty module cache.
type stranger struct {
	t                    *testing.T
	proxy, cache, folder string
}

// run runs the go command with the given arguments. Modules other than latchkit's come from
// this machine's module cache or proxy.
func (s stranger) run(args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "go", args...)
	cmd.Dir = s.folder
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw -trimpath", "GONOSUMDB="+root+","+root+"/*", "GOPRIVATE=", "GONOPROXY=",
		"GOMODCACHE="+filepath.Join(s.cache, "mod"), "GOBIN="+filepath.Join(s.cache, "bin"),
		"GOPROXY=file://"+s.proxy+",file://"+goEnv(s.t, "GOMODCACHE")+"/cache/download,"+goEnv(s.t, "GOPROXY"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("a stranger's go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// release makes a module proxy from the present files, with the steps of a real release.
func release(t *testing.T) (proxy string, modules []string) {
	t.Helper()
	repository, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	tree, proxy := t.TempDir(), t.TempDir()
	copyRepository(t, repository, tree)
	out, err := exec.CommandContext(t.Context(), filepath.Join(repository, ".ci", "prepare-release"), version, tree).CombinedOutput()
	if err != nil {
		t.Fatalf("prepare-release: %v\n%s", err, out)
	}
	for tag := range strings.Lines(string(out)) {
		dir := path.Dir(strings.TrimSpace(tag)) // the folder of the module: "." for the root module
		module := path.Join(root, dir)
		serve(t, filepath.Join(tree, dir), filepath.Join(proxy, filepath.FromSlash(module), "@v"), module)
		modules = append(modules, module)
	}
	return proxy, modules
}

// copyRepository copies the files of the repository from one folder to another. It leaves out
// files whose names begin with a point.
func copyRepository(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil || below == "." {
			return err
		}
		if strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, below), 0o700)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, below), data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// serve writes one version of a module into folder, in the format of a module proxy. The files of
// the module are in dir.
func serve(t *testing.T, dir, folder, module string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"list": version + "\n", version + ".info": `{"Version":"` + version + `","Time":"2026-11-22T00:00:00Z"}`, version + ".mod": string(mod),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(folder, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	pack(t, archive, dir, module+"@"+version+"/")
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// pack puts the files of a module into an archive. It leaves out the folders that are modules
// of their own.
func pack(t *testing.T, archive *zip.Writer, dir, prefix string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != dir {
				return fs.SkipDir
			}
			return nil
		}
		below, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		to, err := archive.Create(prefix + filepath.ToSlash(below))
		if err != nil {
			return err
		}
		from, err := os.Open(name)
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(to, from)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
