package ginlock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// ParseRules reads Rules from YAML:
//
//	POST /orders/:id/pay:
//	  key: order:{param.id|int}
//	  wait: 250ms                  # none: refuse at once
//	  idempotency: "{claim.sub}"   # the scope of the route's idempotency keys
//	POST /baskets:
//	  keys: ["stock:{body.items.*.sku}", "customer:{claim.sub}"]
//	GET /articles/:slug:
//	  key: article:{param.slug}
//	  mode: shared                 # exclusive, or by-method; see WithModeByMethod
//	POST /visits:
//	  lock: none                   # this route needs none
//
// Further members are name, ttl, keep-for, end-after, once-for, status, fail-open, lifetime,
// buffered-response and max-body (a number of bytes, or 64KiB, 1MiB), streamed-body and
// stall-timeout. An unknown or repeated member is an error with its position. A text without rules
// is an error, too.
func ParseRules(text []byte) (httplock.Rules, error) {
	var written map[string]writtenRule
	if err := yaml.UnmarshalWithOptions(text, &written, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("ginlock: the rules cannot be read: %w", err)
	}
	rules := make(httplock.Rules, len(written))
	var errs []error
	for _, route := range slices.Sorted(maps.Keys(written)) {
		rule, err := written[route].rule()
		if err != nil {
			errs = append(errs, fmt.Errorf("ginlock: rule %q: %w", route, err))
		}
		rules[route] = rule
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, errors.New("ginlock: there are no rules in the text; is the file empty, or is it the wrong file?")
	}
	return rules, nil
}

// writtenRule is the YAML form of a Rule.
type writtenRule struct {
	Key      string   `yaml:"key"`
	Keys     []string `yaml:"keys"`
	Lock     string   `yaml:"lock"`
	Name     string   `yaml:"name"`
	Mode     string   `yaml:"mode"`
	TTL      string   `yaml:"ttl"`
	Wait     string   `yaml:"wait"`
	Limit    int      `yaml:"limit"`
	Weight   int      `yaml:"weight"`
	KeepFor  string   `yaml:"keep-for"`
	EndAfter string   `yaml:"end-after"`
	OnceFor  string   `yaml:"once-for"`
	Status   int      `yaml:"status"`
	FailOpen bool     `yaml:"fail-open"`

	Idempotency string `yaml:"idempotency"`
	Lifetime    string `yaml:"lifetime"`

	BufferedResponse string `yaml:"buffered-response"`
	MaxBody          string `yaml:"max-body"`
	StreamedBody     bool   `yaml:"streamed-body"`
	StallTimeout     string `yaml:"stall-timeout"`
}

func (w writtenRule) rule() (httplock.Rule, error) {
	r := httplock.Rule{
		Key: httplock.Key(w.Key), Name: w.Name, Status: w.Status, FailOpen: w.FailOpen, Idempotency: httplock.Key(w.Idempotency), StreamedBody: w.StreamedBody,
		Limit: w.Limit, Weight: w.Weight,
	}
	for _, k := range w.Keys {
		r.Keys = append(r.Keys, httplock.Key(k))
	}
	switch w.Mode {
	case "", "exclusive":
	case "shared":
		r.Mode = locker.Shared
	case "by-method":
		r.ModeByMethod = true
	default:
		return r, fmt.Errorf("its mode %q is unknown; write exclusive, shared or by-method", w.Mode)
	}
	switch w.Lock {
	case "":
	case "none":
		r.NoLock = true
	default:
		return r, fmt.Errorf("its lock %q is unknown; write lock: none, or leave lock out and write a key", w.Lock)
	}
	if w.Wait == "none" {
		w.Wait, r.Wait = "", locker.NoWait
	}
	for _, t := range []struct {
		member, text string
		to           *time.Duration
	}{
		{"ttl", w.TTL, &r.TTL}, {"wait", w.Wait, &r.Wait}, {"keep-for", w.KeepFor, &r.KeepFor}, {"end-after", w.EndAfter, &r.EndAfter},
		{"once-for", w.OnceFor, &r.OnceFor}, {"lifetime", w.Lifetime, &r.Lifetime}, {"stall-timeout", w.StallTimeout, &r.StallTimeout},
	} {
		if t.text == "" {
			continue
		}
		d, err := time.ParseDuration(t.text)
		if t.member == "wait" && err == nil && d == 0 {
			return r, errors.New("its wait is 0; write wait: none to refuse at once, or a time such as 250ms")
		}
		if err != nil || d <= 0 {
			return r, fmt.Errorf("its %s %q is no time; write for example 250ms, 10s or 24h", t.member, t.text)
		}
		*t.to = d
	}
	size, err := bytesOf("buffered-response", w.BufferedResponse)
	if err != nil {
		return r, err
	}
	r.BufferedResponse = int(size)
	r.MaxBody, err = bytesOf("max-body", w.MaxBody)
	return r, err
}

// bytesOf reads a number of bytes, such as "65536", "64KiB" or "1MiB". The empty text is 0.
func bytesOf(member, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	digits, unit := text, int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			digits, unit = strings.TrimSpace(before), size
		}
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("its %s %q is no size; write for example 65536, 64KiB or 1MiB", member, text)
	}
	return n * unit, nil
}
