package foreign

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/latchkit/latchkit/internal/proc"
)

// A library is a lock library of Go or another language, with which peers lock. The table in
// docs/guarantees.md has a row for each library.
type library struct {
	name    string
	servers int    // the number of servers on which the library takes each lock
	prefix  string // the prefix of the library's lock names
	starts  func(t testing.TB, name string, ports []string) *proc.Child
}

// key returns the Redis key that a peer uses for the name of a lock.
func (l library) key(name string) string { return l.prefix + name }

func (l library) start(t testing.TB, ports []int) *peer {
	t.Helper()
	texts := make([]string, len(ports))
	for i, port := range ports {
		texts[i] = strconv.Itoa(port)
	}
	return newPeer(t, l.starts(t, l.name, texts))
}

var libraries = []library{
	{name: "redislock", servers: 1, starts: inGo},
	{name: "redsync", servers: 1, starts: inGo},
	{name: "redsync on three servers", servers: 3, starts: inGo},
	{name: "redis-py Lock", servers: 1, starts: inPython},
	{name: "redlock on ioredis", servers: 1, starts: inNode},
	{name: "redlock on three servers", servers: 3, starts: inNode},
	{name: "Jedis: SET NX PX and a script", servers: 1, starts: inJava("jedis")},
	{name: "ShedLock on Jedis", servers: 1, starts: inJava("shedlock"), prefix: "job-lock:default:"},
}

func inGo(t testing.TB, name string, ports []string) *proc.Child {
	t.Helper()
	if name == "redislock" {
		return redislockPeer.Start(t, ports...)
	}
	return redsyncPeer.Start(t, ports...)
}

func inPython(t testing.TB, name string, ports []string) *proc.Child {
	t.Helper()
	cmd := exec.Command("python3", append([]string{"testdata/python/client.py"}, ports...)...)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+installed(t, "python"), "PYTHONDONTWRITEBYTECODE=1")
	return proc.Start(t, name, cmd)
}

func inNode(t testing.TB, name string, ports []string) *proc.Child {
	t.Helper()
	cmd := exec.Command("node", append([]string{"testdata/node/client.js"}, ports...)...)
	cmd.Env = append(cmd.Environ(), "NODE_PATH="+filepath.Join(installed(t, "node"), "node_modules"))
	return proc.Start(t, name, cmd)
}

func inJava(locks string) func(testing.TB, string, []string) *proc.Child {
	return func(t testing.TB, name string, ports []string) *proc.Child {
		t.Helper()
		return proc.Start(t, name, exec.Command("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
			"-cp", filepath.Join(installed(t, "java"), "*"), "Client", ports[0], locks))
	}
}
