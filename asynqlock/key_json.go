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

	"github.com/latchkit/latchkit/internal/template"
)

// bindPayload returns a function that reads the member of a JSON payload to which path leads. The
// function decodes the payload into a struct with only this member. So it finds the same value as a
// handler that decodes a struct, and does not decode the other members.
func bindPayload(path string) (read, error) {
	steps := strings.Split(path, ".")
	typ := reflect.TypeFor[json.RawMessage]()
	for _, name := range slices.Backward(steps) {
		if name == "" {
			return nil, errors.New("a name in it is empty; write {payload.tenant}, or {payload.user.id}")
		}
		if strings.ContainsFunc(name, noTag) {
			return nil, fmt.Errorf("encoding/json does not accept %q as the name of a field; use KeyFunc", name)
		}
		if name == "-" {
			name = "-," // the tag "-," is the name "-"; the tag "-" omits the field
		}
		typ = reflect.StructOf([]reflect.StructField{{Name: "Member", Type: typ, Tag: reflect.StructTag("json:" + strconv.Quote(name))}})
	}
	return func(_ context.Context, m *message) (string, error) {
		into := reflect.New(typ)
		if err := json.Unmarshal(m.task.Payload(), into.Interface()); err != nil {
			if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				return "", nil // a step leads through a value that is not an object
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

// noTag reports whether a name in a struct tag must not contain r.
func noTag(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r)
}

// formatJSON returns the text of a value. raw is valid JSON, or empty if there is no value.
func formatJSON(raw []byte) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	var value any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return "", err
	}
	return template.Format(value)
}
