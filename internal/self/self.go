// Package self names this process for operators who look for the holder of a lock.
package self

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// mostBytes is the largest length of a name. The name is a part of every lease.
const mostBytes = 64

// leastProgram is how much of a long program's name stays if the host's name is long, too.
const leastProgram = 20

// Name returns PROGRAM@HOST:PID. PROGRAM is the environment variable OTEL_SERVICE_NAME, as in the
// traces of the process, or else the name of the program's file. The name is made once.
var Name = sync.OnceValue(func() string {
	return As(cmp.Or(os.Getenv("OTEL_SERVICE_NAME"), base(os.Args)))
})

// As returns the name of this process as if the program had the given name.
func As(program string) string {
	host, _ := os.Hostname()
	return format(program, host, os.Getpid())
}

// base returns the name of the program's file.
func base(args []string) string {
	if len(args) == 0 || args[0] == "" {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(args[0]), ".exe")
}

// format returns program@host:pid, in at most mostBytes bytes of valid UTF-8 without spaces. The
// pid is never cut. A host that is too long loses its domain, and then its beginning, because the
// names of Kubernetes' pods end with what distinguishes them.
func format(program, host string, pid int) string {
	program, host = cmp.Or(plain(program), "unknown"), cmp.Or(plain(host), "unknown")
	end := ":" + strconv.Itoa(pid)
	room := mostBytes - len("@") - len(end)
	if len(program)+len(host) > room {
		host, _, _ = strings.Cut(host, ".")
	}
	if len(program)+len(host) > room {
		program = head(program, max(room-len(host), leastProgram))
		host = tail(host, room-len(program))
	}
	return program + "@" + host + end
}

// plain returns text with an underscore in place of each space, each character that cannot be
// printed, and each byte that is no UTF-8.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, text)
}

// head returns the first characters of text, in at most n bytes.
func head(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// tail returns the last characters of text, in at most n bytes.
func tail(text string, n int) string {
	from := max(len(text)-n, 0)
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return text[from:]
}
