package self

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestANameIsProgramHostAndPID(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		why, program, host string
		pid                int
		want               string
	}{
		{"a service on a pod", "report", "pod-7f9c", 1, "report@pod-7f9c:1"},
		{"a full name that has room", "report", "db-3.eu.example.com", 12345, "report@db-3.eu.example.com:12345"},
		{"a domain without room", "report", "db-3." + long, 12345, "report@db-3:12345"},
		{"a long pod", "report", "report-with-a-name-of-many-words-for-the-nightly-7f9c8d6b5-x2x4z", 7,
			"report@th-a-name-of-many-words-for-the-nightly-7f9c8d6b5-x2x4z:7"},
		{"a long program", long, "pod-7f9c", 1, long[:53] + "@pod-7f9c:1"},
		{"a long program on a long host", long, "a" + long, 4194304, long[:20] + "@" + long[:35] + ":4194304"},
		{"characters of several bytes", strings.Repeat("ü", 40), strings.Repeat("日", 40), 4194304,
			strings.Repeat("ü", 10) + "@" + strings.Repeat("日", 11) + ":4194304"},
		{"text that no terminal should get", "my \x1b[2Jservice\n", "a\x01b\xffc\u2028d", 1, "my__[2Jservice_@a_b_c_d:1"},
		{"nothing is known", "", "", 1, "unknown@unknown:1"},
	} {
		got := format(c.program, c.host, c.pid)
		if got != c.want || len(got) > mostBytes || !utf8.ValidString(got) {
			t.Errorf("%s: the name is %q (%d bytes), want %q", c.why, got, len(got), c.want)
		}
	}
}

func TestANameBeginsWithTheServiceOrTheFile(t *testing.T) {
	if os.Getenv("LATCHKIT_PRINT_NAME") != "" {
		_, _ = os.Stdout.WriteString("name " + Name() + "\n")
		return
	}
	file, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for service, program := range map[string]string{"": "self.test", "report": "report"} {
		child := exec.CommandContext(t.Context(), file, "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), "LATCHKIT_PRINT_NAME=1", "OTEL_SERVICE_NAME="+service)
		out, err := child.Output()
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		want := "name " + format(program, must(os.Hostname()), child.Process.Pid)
		if line != want {
			t.Errorf("with OTEL_SERVICE_NAME=%q the process printed %q, want %q", service, line, want)
		}
	}
}

func TestANameHasThePIDOfThisProcess(t *testing.T) {
	if got := As("backup"); !strings.HasPrefix(got, "backup@") || !strings.HasSuffix(got, ":"+strconv.Itoa(os.Getpid())) {
		t.Errorf("As(backup) = %q", got)
	}
}

func must(host string, err error) string {
	if err != nil {
		return ""
	}
	return host
}
