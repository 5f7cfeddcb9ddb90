package asynqlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/key"
)

// bindMember returns what reads the member of a JSON payload that steps lead to. It decodes the
// payload as a handler does that has a struct with that member alone, so both find the same value,
// and what is not asked for costs nothing.
func bindMember(steps []string) (read, error) {
	typ := reflect.TypeFor[json.RawMessage]()
	for _, name := range slices.Backward(steps) {
		if strings.ContainsFunc(name, noTag) {
			return nil, fmt.Errorf("%q cannot be the name of a field, for encoding/json; use Key", name)
		}
		if name == "-" {
			name = "-," // is the name, and no omission
		}
		typ = reflect.StructOf([]reflect.StructField{{Name: "Member", Type: typ, Tag: reflect.StructTag("json:" + strconv.Quote(name))}})
	}
	return func(_ context.Context, m *message) (string, error) {
		into := reflect.New(typ)
		if err := json.Unmarshal(m.task.Payload(), into.Interface()); err != nil {
			if _, ok := errtype.As[*json.UnmarshalTypeError](err); ok {
				return "", nil // something on the way is no object
			}
			return "", fmt.Errorf("the payload cannot be decoded: %w", err)
		}
		value := into.Elem()
		for range steps {
			value = value.Field(0)
		}
		return formatJSON(value.Bytes())
	}, nil
}

// noTag says whether a byte cannot stand in a name that a field's tag gives.
func noTag(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r)
}

// formatJSON returns the text of a value; raw is valid, or empty where there is none.
func formatJSON(raw []byte) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	switch raw[0] {
	case '"':
		if !bytes.ContainsRune(raw, '\\') && utf8.Valid(raw) {
			return string(raw[1 : len(raw)-1]), nil
		}
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case 'n': // null
		return "", nil
	case 't', 'f':
		return string(raw), nil
	case '{', '[':
		return "", errors.New("it is no text, number or boolean")
	default:
		return key.Format(json.Number(raw))
	}
}
