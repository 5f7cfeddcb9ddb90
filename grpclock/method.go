package grpclock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
)

// method is the compiled rule of one method.
type method struct {
	rule  locker.Rule               // without a Key
	keys  *template.Template[*call] // nil: the keys are made by a function
	made  KeyFunc
	early bool  // the keys can be made without the request message
	err   error // why the rule is invalid
}

// keysOf makes the keys of a call.
func (m *method) keysOf(ctx context.Context, c *call) ([]string, error) {
	switch {
	case m.made.of != nil:
		k, err := m.made.key(c.req)
		return []string{k}, err
	case !m.keys.Several():
		k, err := m.keys.Key(ctx, c)
		return []string{k}, err
	}
	return m.keys.Keys(ctx, c)
}

// describe returns the descriptor of a method, or nil when this program has no descriptor of the
// method.
func describe(fullMethod string) protoreflect.MethodDescriptor {
	service, name, ok := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if !ok {
		return nil
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	s, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	return s.Methods().ByName(protoreflect.Name(name))
}

// compile makes a method from a rule. The method's err explains why the rule is invalid.
func (r *Rules) compile(rule Rule, fullMethod string, described protoreflect.MethodDescriptor) *method {
	m := &method{made: rule.Func, rule: locker.Rule{
		Name: rule.Name, Mode: rule.Mode, Wait: rule.Wait, TTL: rule.TTL,
		KeepFor: rule.KeepFor, EndAfter: rule.EndAfter, OnceFor: rule.OnceFor, Limit: rule.Limit, Weight: rule.Weight,
	}}
	if m.err = rule.check(); m.err != nil {
		return m
	}
	var request protoreflect.MessageDescriptor
	if described != nil {
		request = described.Input()
	}
	if rule.Func.of != nil {
		m.rule.Name = cmp.Or(rule.Name, methodName(fullMethod))
		if request != nil && rule.Func.request != "" && rule.Func.request != request.FullName() {
			m.err = fmt.Errorf("the Func makes keys of %s, and the request is a %s", rule.Func.request, request.FullName())
		}
		return m
	}
	if m.keys, m.err = r.grammar(request).Compile(rule.templates()...); m.err != nil {
		return m
	}
	if rule.OnceFor > 0 {
		if m.err = m.keys.CheckSpelling(chosen(request)); m.err != nil {
			return m
		}
	}
	m.rule.Name = cmp.Or(m.rule.Name, m.keys.Name())
	m.early = !slices.ContainsFunc(m.keys.Parts(), func(p template.Ref) bool { return p.Source == "req" })
	return m
}

// zero reports whether the Rule is empty.
func (r *Rule) zero() bool { return reflect.ValueOf(*r).IsZero() }

// check finds mistakes that do not depend on the Locker.
func (r *Rule) check() error {
	if r.Key != "" && len(r.Keys) > 0 {
		return errors.New("the rule has a Key and Keys; write all keys into Keys")
	}
	if len(r.templates()) > 0 && r.Func.of != nil {
		return errors.New("the rule has a Key and a Func; give only one of the two")
	}
	if r.Mode > locker.Shared {
		return fmt.Errorf("the mode %d is neither exclusive nor shared", r.Mode)
	}
	if r.Wait < 0 && r.Wait != locker.NoWait || r.Wait > 0 && r.Wait < time.Millisecond {
		return fmt.Errorf("the wait is %v; give at least 1ms, or refuse at once: NoWait in Go, 0 in a .proto file", r.Wait)
	}
	for _, t := range []struct {
		what         string
		value, least time.Duration
	}{
		{"ttl", r.TTL, shortestTTL},
		{"once_for", r.OnceFor, time.Millisecond},
		{"keep_for", r.KeepFor, time.Millisecond},
		{"end_after", r.EndAfter, time.Millisecond},
	} {
		if t.value != 0 && t.value < t.least {
			return fmt.Errorf("%s is %v; the shortest is %v, leave it out for none", t.what, t.value, t.least)
		}
	}
	if r.EndAfter != 0 && r.EndAfter < r.KeepFor {
		return fmt.Errorf("end_after %v is shorter than keep_for %v", r.EndAfter, r.KeepFor)
	}
	return nil
}

// shortestTTL is the smallest TTL that a rule may have. It is longer than the response time of a
// server in the same data centre.
const shortestTTL = 10 * time.Millisecond

// check returns the reason why the interceptor's Locker can never grant the rule, or nil.
func (g *guard) check(m *method) error {
	rule := m.rule
	rule.TTL, rule.Wait = cmp.Or(rule.TTL, g.ttl), cmp.Or(rule.Wait, g.wait)
	return locker.Check(g.locker, rule)
}
