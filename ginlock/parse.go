package ginlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// ParseRules reads Rules from JSON:
//
//	{
//		"POST /orders/:id/pay": {"key": "order:{param.id|int}", "wait": "none", "once-for": "24h"},
//		"POST /baskets": {"keys": ["stock:{body.items.*.sku|text}", "till"], "wait": "250ms"},
//		"POST /checkout": {"idempotency": "{claim.sub}"},
//		"GET /articles/:slug": {"key": "article:{param.slug|text}", "mode": "shared"},
//		"POST /visits": {"lock": "none"}
//	}
//
// The mode may also be exclusive. Further members are the texts name, ttl, keep-for, end-after and
// lifetime, the numbers limit and weight, the booleans fail-open and streamed-body, and max-body, a
// number of bytes or "64KiB", "1MiB". A member that is unknown, stands twice, or is empty (null, "", [] or {}) is an error that names its
// line. A text without rules is an error, too. Rules in YAML need a library that converts them.
func ParseRules(text []byte) (httplock.Rules, error) {
	p := parser{text: text}
	if len(bytes.TrimSpace(text)) == 0 {
		p.text = []byte("{}")
	}
	var whole json.RawMessage // without the spaces before it
	if err := json.Unmarshal(p.text, &whole); err != nil {
		at := 0
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = max(int(e.Offset)-1, 0) // the place before which the text was read
		}
		p.fail(at, "the rules are not JSON, and another format must be converted first: %w", err)
		return nil, p.errs[0]
	}
	rules := make(httplock.Rules)
	p.object(whole, bytes.Index(p.text, whole), "the table of rules", func(route string, rule []byte, at int) {
		var r httplock.Rule
		p.object(rule, at, fmt.Sprintf("rule %q", route), func(member string, value []byte, at int) {
			to, known := members(&r)[member]
			if !known {
				p.fail(at, "rule %q: the member %q is unknown; ParseRules lists the members", route, member)
			} else if err := json.Unmarshal(value, to); err != nil {
				if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
					err = fmt.Errorf("cannot be a %s", e.Value)
				}
				p.fail(at, "rule %q: its %s %w", route, member, err)
			}
		})
		rules[route] = r
	})
	if len(rules) == 0 && len(p.errs) == 0 {
		return nil, errors.New("ginlock: there are no rules in the text; is the file empty, or is it the wrong file?")
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return rules, nil
}

// parser collects the mistakes in text, which is JSON.
type parser struct {
	text []byte
	errs []error
}

// fail records a mistake at an index of the text.
func (p *parser) fail(at int, format string, args ...any) {
	line := 1 + bytes.Count(p.text[:at], []byte("\n"))
	p.errs = append(p.errs, fmt.Errorf("ginlock: line %d: %w", line, fmt.Errorf(format, args...)))
}

// object calls found with each member of the JSON object value, which begins at the index start of
// the text. encoding/json would take the last of several members with a name, and take an empty
// member for one that is left out.
func (p *parser) object(value []byte, start int, what string, found func(name string, value []byte, at int)) {
	d, seen := json.NewDecoder(bytes.NewReader(value)), make(map[string]bool)
	if t, _ := d.Token(); t != json.Delim('{') {
		p.fail(start, "%s is not an object", what)
		return
	}
	for d.More() {
		token, _ := d.Token()
		name, _ := token.(string)
		at := start + int(d.InputOffset())
		var member json.RawMessage
		_ = d.Decode(&member) // value is valid
		switch strings.Join(strings.Fields(string(member)), "") {
		case "null", `""`, "[]", "{}", "0":
			p.fail(at, "%s: %s has no value; write the value, or leave %[2]s out", what, name)
			continue
		}
		if seen[name] {
			p.fail(at, "%s: %s stands twice; keep one", what, name)
			continue
		}
		seen[name] = true
		found(name, member, start+int(d.InputOffset())-len(member))
	}
}

// members are the names in JSON of the fields of r.
func members(r *httplock.Rule) map[string]any {
	return map[string]any{
		"key": &r.Key, "keys": &r.Keys, "lock": (*lock)(&r.NoLock), "idempotency": &r.Idempotency, "name": &r.Name, "mode": (*mode)(r),
		"wait": (*wait)(&r.Wait), "ttl": (*duration)(&r.TTL), "keep-for": (*duration)(&r.KeepFor), "end-after": (*duration)(&r.EndAfter),
		"once-for": (*duration)(&r.OnceFor), "lifetime": (*duration)(&r.Lifetime), "limit": &r.Limit, "weight": &r.Weight,
		"fail-open": &r.FailOpen, "streamed-body": &r.StreamedBody, "max-body": (*size)(&r.MaxBody),
	}
}

// These types read the members that are not written as encoding/json writes their fields.
type (
	lock     bool
	mode     httplock.Rule
	wait     time.Duration
	duration time.Duration
	size     int64
)

func (l *lock) UnmarshalJSON(value []byte) error {
	if *l = string(value) == `"none"`; !*l {
		return fmt.Errorf(`%s is unknown; write "none", or leave lock out and write a key`, value)
	}
	return nil
}

func (m *mode) UnmarshalJSON(value []byte) error {
	switch string(value) {
	case `"exclusive"`:
	case `"shared"`:
		m.Mode = locker.Shared
	default:
		return fmt.Errorf("%s is unknown; write exclusive or shared", value)
	}
	return nil
}

func (w *wait) UnmarshalJSON(value []byte) error {
	if string(value) == `"none"` {
		*w = wait(locker.NoWait)
		return nil
	}
	err := (*duration)(w).UnmarshalJSON(value)
	if err != nil {
		err = fmt.Errorf(`%w, or "none" to refuse at once`, err)
	}
	return err
}

func (d *duration) UnmarshalJSON(value []byte) error {
	text, err := strconv.Unquote(string(value))
	if err == nil {
		var t time.Duration
		t, err = time.ParseDuration(text)
		*d = duration(t)
	}
	if err != nil || *d <= 0 {
		return fmt.Errorf(`%s is no time; write for example "250ms", "10s" or "24h"`, value)
	}
	return nil
}

func (s *size) UnmarshalJSON(value []byte) error {
	digits, unit := strings.Trim(string(value), `"`), int64(1)
	for suffix, many := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20} {
		if before, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = strings.TrimSpace(before), many
		}
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf(`%s is no size; write for example 65536, "64KiB" or "1MiB"`, value)
	}
	*s = size(n * unit)
	return nil
}
