package ginlock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/latchkit/latchkit/locker"
)

// ParseRules reads Rules from YAML:
//
//	POST /orders/:id/pay:
//	  key: order:{param.id}
//	  wait: 250ms           # none: refuse at once
//	GET /articles/:slug:
//	  key: article:{param.slug}
//	  mode: shared          # exclusive, or by-method; see WithModeByMethod
//
// The other members are name, ttl, at-least, at-most, once, status and fail-open. What is not known, or there twice, is an
// error that says where.
func ParseRules(text []byte) (Rules, error) {
	var written map[string]writtenRule
	if err := yaml.UnmarshalWithOptions(text, &written, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("ginlock: the rules cannot be read: %w", err)
	}
	rules := make(Rules, len(written))
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
	return rules, nil
}

// writtenRule is a Rule as it stands in YAML.
type writtenRule struct {
	Key      string `yaml:"key"`
	Name     string `yaml:"name"`
	Mode     string `yaml:"mode"`
	TTL      string `yaml:"ttl"`
	Wait     string `yaml:"wait"`
	AtLeast  string `yaml:"at-least"`
	AtMost   string `yaml:"at-most"`
	Once     string `yaml:"once"`
	Status   int    `yaml:"status"`
	FailOpen bool   `yaml:"fail-open"`
}

func (w writtenRule) rule() (Rule, error) {
	r := Rule{Key: Key(w.Key), Name: w.Name, Status: w.Status, FailOpen: w.FailOpen}
	switch w.Mode {
	case "", "exclusive":
	case "shared":
		r.Mode = locker.Shared
	case "by-method":
		r.ModeByMethod = true
	default:
		return r, fmt.Errorf("its mode %q is none; write exclusive, shared or by-method", w.Mode)
	}
	if w.Wait == "none" {
		w.Wait, r.Wait = "", locker.NoWait
	}
	for _, t := range []struct {
		member, text string
		to           *time.Duration
	}{{"ttl", w.TTL, &r.TTL}, {"wait", w.Wait, &r.Wait}, {"at-least", w.AtLeast, &r.AtLeast}, {"at-most", w.AtMost, &r.AtMost}, {"once", w.Once, &r.Once}} {
		if t.text == "" {
			continue
		}
		d, err := time.ParseDuration(t.text)
		if err != nil || d <= 0 {
			return r, fmt.Errorf("its %s %q is no time; write for example 250ms, 10s or 24h", t.member, t.text)
		}
		*t.to = d
	}
	return r, nil
}
