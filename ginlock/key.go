package ginlock

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/locker"
)

// template is a key as New was given it, compiled.
type template struct {
	name  string // the literal text before the first ':'
	parts []part
	tail  string // literal text after the last part
}

// part is one value of a request, and the literal text before it.
type part struct {
	before string
	from   string // "param", "query" or "header"
	name   string
}

const (
	// maxValueBytes is how long an encoded value may be before its hash takes its place: longer than a hash, and short
	// enough for four of them in a key.
	maxValueBytes = 100
	// maxKeyBytes is what a Locker allows.
	maxKeyBytes = 512
)

// compile reads a template. Between two parts it wants a ':', which no encoded value contains: then the parts can be
// read back from the key, and so different values make different keys.
func compile(text string) (*template, error) {
	bad := func(format string, args ...any) (*template, error) {
		return nil, fmt.Errorf("ginlock: the key %q %s", text, fmt.Sprintf(format, args...))
	}
	t := &template{name: "lock"}
	rest, longest := text, len(text)
	for {
		before, inner, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return bad("has a '}' without a '{'; write parts as {param.id}, and leave braces out of literal text")
		}
		if len(t.parts) == 0 {
			if name, _, ok := strings.Cut(before, ":"); ok && name != "" {
				t.name = name
			}
		}
		if !found {
			t.tail = before
			break
		}
		if len(t.parts) > 0 && !strings.Contains(before, ":") {
			return bad("has no ':' between two parts; without one, different values could make the same key")
		}
		content, after, closed := strings.Cut(inner, "}")
		if !closed {
			return bad("has a '{' without a '}'; write parts as {param.id}, and leave braces out of literal text")
		}
		from, name, _ := strings.Cut(content, ".")
		if from != "param" && from != "query" && from != "header" || name == "" {
			return bad("has the part {%s}; write {param.NAME}, {query.NAME} or {header.NAME}", content)
		}
		t.parts = append(t.parts, part{before, from, name})
		longest += maxValueBytes - len(content) - 2
		rest = after
	}
	switch {
	case text == "":
		return nil, errors.New("ginlock: the key is empty; name what the route changes, such as \"order:{param.id}\"")
	case strings.HasPrefix(text, "latchkit:"):
		return bad("starts with \"latchkit:\", which is kept for the locks' own data; choose another beginning")
	case longest > maxKeyBytes:
		return bad("can become %d bytes long, %d are allowed; use fewer parts, at most %d bytes each", longest, maxKeyBytes, maxValueBytes)
	}
	return t, nil
}

// of returns the key of a request.
func (t *template) of(c *gin.Context) (string, error) {
	if len(t.parts) == 0 {
		return t.tail, nil
	}
	key := make([]byte, 0, 128)
	for _, p := range t.parts {
		value, err := p.value(c)
		if err != nil {
			return "", err
		}
		key = appendValue(append(key, p.before...), value)
	}
	return string(append(key, t.tail...)), nil
}

// value returns the part of the request that p names.
func (p part) value(c *gin.Context) (value string, err error) {
	switch p.from {
	case "param":
		var declared bool
		if value, declared = c.Params.Get(p.name); !declared {
			return "", fmt.Errorf("%w: the route %s has no parameter %q", locker.ErrInvalidRule, c.FullPath(), p.name)
		}
	case "query":
		value = c.Query(p.name)
	case "header":
		value = c.GetHeader(p.name)
	}
	if value == "" {
		return "", &missing{p}
	}
	return value, nil
}

// missing is the error of a request that lacks a part of its key.
type missing struct{ part part }

// Error names the part; its text comes from the program and goes to the client.
func (m *missing) Error() string {
	return fmt.Sprintf("the request lacks the %s %q", map[string]string{
		"param": "path parameter", "query": "query parameter", "header": "header",
	}[m.part.from], m.part.name)
}

// Is makes it an ErrInvalidKey.
func (m *missing) Is(target error) bool { return target == locker.ErrInvalidKey }

// appendValue appends value, encoded so that it has no ':', '{', '}' or control byte, and is injective: '%' is encoded
// too, and so is the '~' with which hashes begin.
func appendValue(key []byte, value string) []byte {
	if len(value) <= maxValueBytes {
		start := len(key)
		for i := range len(value) {
			if b := value[i]; b < ' ' || b == 0x7f || b == ':' || b == '{' || b == '}' || b == '%' || b == '~' && i == 0 {
				const digits = "0123456789ABCDEF"
				key = append(key, '%', digits[b>>4], digits[b&15])
			} else {
				key = append(key, b)
			}
		}
		if len(key)-start <= maxValueBytes {
			return key
		}
		key = key[:start]
	}
	sum := sha256.Sum256([]byte(value))
	return hex.AppendEncode(append(key, '~'), sum[:])
}
