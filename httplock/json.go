package httplock

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/latchkit/latchkit/internal/template"
)

var (
	errNotJSON   = errors.New("the body is not JSON")
	errAmbiguous = errors.New("it occurs more than once")
	errNoList    = errors.New("it is not a list")
	errNoScalar  = errors.New("it is not a string, a number or a boolean")
	errTooMany   = errors.New("the list is too long")
)

// every is the step that stands for all elements of a list.
const every = "*"

// member returns the value to which the path steps leads, or "" if there is none.
//
// If an object has a member several times, encoding/json takes the last value, and it ignores the
// case of members' names. Other libraries may take the value of another of these members. If two
// libraries could find different values in a body, the body is refused. Otherwise the lock could be
// on one value, and the handler could work on the other.
func member(data []byte, steps []string) (string, error) {
	values, err := members(data, steps)
	if err != nil || len(values) == 0 {
		return "", err
	}
	return values[0], nil
}

// members returns the values to which the path steps leads. If an element of a list has no member
// at the rest of the path, its value is "".
func members(data []byte, steps []string) ([]string, error) {
	if !json.Valid(data) { // this also refuses a second value, or other text, after the first value
		return nil, errNotJSON
	}
	var values []string
	err := walk(data, steps, func(value []byte) error {
		if len(values) > template.MaxKeys*10 { // so many values are refused, even if most of them are equal
			return errTooMany
		}
		text, err := scalar(value)
		values = append(values, text)
		return err
	})
	return values, err
}

// walk calls found with each value to which the path steps leads, and with nil for an element of a
// list that has no such value. data is valid JSON. walk reads it once, without copies, because a
// large body must not cost much before the lock is taken.
func walk(data []byte, steps []string, found func(value []byte) error) error {
	data = bytes.TrimSpace(data)
	if len(steps) == 0 {
		return found(data)
	}
	step, rest := steps[0], steps[1:]
	switch data[0] {
	case '{':
		if step == every {
			return errNoList
		}
		value, err := memberOf(data, step)
		if err != nil {
			return err
		}
		if value == nil {
			return found(nil)
		}
		return walk(value, rest, found)
	case '[':
		return walkList(data, step, rest, found)
	}
	if step == every {
		return errNoList
	}
	return found(nil)
}

func walkList(data []byte, step string, rest []string, found func(value []byte) error) error {
	at, wanted := 1, indexOf(step)
	for i := 0; ; i++ {
		at = skipSpace(data, at)
		if data[at] == ']' {
			break
		}
		end := skipValue(data, at)
		switch {
		case step == every:
			if err := walk(data[at:end], rest, found); err != nil {
				return err
			}
		case i == wanted:
			return walk(data[at:end], rest, found)
		}
		at = skipSpace(data, end)
		if data[at] == ',' {
			at++
		}
	}
	if step == every {
		return nil
	}
	return found(nil)
}

// indexOf returns the index that a step names, or -1 when it names no index. "01" and "+1" are not
// indexes, because otherwise an element could have several keys.
func indexOf(step string) int {
	n, err := strconv.Atoi(step)
	if err != nil || strconv.Itoa(n) != step {
		return -1
	}
	return n
}

// memberOf returns the member of an object, or nil when the object has no such member.
func memberOf(data []byte, name string) (value []byte, err error) {
	at := 1
	for {
		at = skipSpace(data, at)
		if data[at] == '}' {
			return value, nil
		}
		end := skipValue(data, at)
		here := strings.EqualFold(text(data[at:end]), name)
		at = skipSpace(data, end) + 1 // the colon
		at = skipSpace(data, at)
		end = skipValue(data, at)
		if here && value != nil {
			return nil, errAmbiguous
		}
		if here {
			value = data[at:end]
		}
		at = skipSpace(data, end)
		if data[at] == ',' {
			at++
		}
	}
}

// text returns the value of a JSON string.
func text(quoted []byte) string {
	var s string
	if bytes.IndexByte(quoted, '\\') < 0 {
		return strings.ToValidUTF8(string(quoted[1:len(quoted)-1]), "\ufffd")
	}
	_ = json.Unmarshal(quoted, &s) // quoted is valid
	return s
}

// scalar returns the text of a value. It is "" for a missing value and for null.
func scalar(value []byte) (string, error) {
	if value == nil {
		return "", nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	switch value[0] {
	case '{', '[':
		return "", errNoScalar
	}
	if err := d.Decode(&v); err != nil {
		return "", errNotJSON
	}
	return template.Format(v)
}

func skipSpace(data []byte, at int) int {
	for data[at] == ' ' || data[at] == '\t' || data[at] == '\n' || data[at] == '\r' {
		at++
	}
	return at
}

// skipValue returns the end of the value that begins at the index at.
func skipValue(data []byte, at int) int {
	depth := 0
	for {
		switch data[at] {
		case '"':
			at = skipText(data, at)
		case '{', '[':
			depth++
			at++
		case '}', ']':
			depth--
			at++
		case ',', ':', ' ', '\t', '\n', '\r':
			at++
			continue
		default: // a number, true, false or null
			for at < len(data) && !bytes.ContainsRune([]byte(",]} \t\n\r"), rune(data[at])) {
				at++
			}
		}
		if depth == 0 {
			return at
		}
	}
}

func skipText(data []byte, at int) int {
	for at++; data[at] != '"'; at++ {
		if data[at] == '\\' {
			at++
		}
	}
	return at + 1
}
