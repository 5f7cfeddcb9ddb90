package grpclock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// Rules say under which lock each method of a server runs. They are read once: by [Rules.Bind], or method by method with the
// first call. Make them with [FromDescriptors] or [FromMap]; they are safe for concurrent use.
type Rules struct {
	annotated bool
	explicit  RuleMap
	secret    []byte

	mu    sync.Mutex                         // of who adds to
	bound atomic.Pointer[map[string]*method] // what is known of methods; a nil one runs without a lock
}

// FromDescriptors returns the rules that stand in the .proto files of the services.
func FromDescriptors() *Rules { return &Rules{annotated: true} }

// FromMap returns rules that were written in Go. What stands in .proto files does not count.
func FromMap(rules RuleMap) *Rules { return (&Rules{}).With(rules) }

// With returns these rules with others for some methods, which come first.
func (r *Rules) With(rules RuleMap) *Rules {
	more := &Rules{annotated: r.annotated, explicit: maps.Clone(r.explicit), secret: r.secret}
	if more.explicit == nil {
		more.explicit = make(RuleMap, len(rules))
	}
	maps.Copy(more.explicit, rules)
	return more
}

// WithSecret returns these rules with a secret for the parts of keys that end with |hmac: at least 16 random bytes, the same in
// all processes.
func (r *Rules) WithSecret(secret []byte) *Rules {
	return &Rules{annotated: r.annotated, explicit: r.explicit, secret: slices.Clone(secret)}
}

// Bind reads the rules of all methods of a server; call it when the services are registered, before Serve. Its error names
// every method whose rule makes no sense, and says what to do: a field that the request does not have, a time that cannot be
// meant, a rule for a method that is not there.
func (r *Rules) Bind(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
},
) error {
	bound := make(map[string]*method)
	var problems []error
	services := server.GetServiceInfo()
	for _, service := range slices.Sorted(maps.Keys(services)) {
		for _, info := range services[service].Methods {
			name := "/" + service + "/" + info.Name
			m, _ := r.resolve(name)
			if m != nil && m.err != nil {
				problems = append(problems, m.err)
			}
			bound[name] = m
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.explicit)) {
		if _, registered := bound[name]; !registered {
			problems = append(problems, fmt.Errorf("grpclock: %s has a rule, and the server has no such method; write it as generated code does, in Service_Method_FullMethodName", name))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.bound.Load(); known != nil {
		for name, m := range *known {
			if _, ok := bound[name]; !ok {
				bound[name] = m
			}
		}
	}
	r.bound.Store(&bound)
	return nil
}

// Describe returns a table of the methods that are known so far: after Bind all of a server, for a review.
func (r *Rules) Describe() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if known := r.bound.Load(); known != nil {
		for _, name := range slices.Sorted(maps.Keys(*known)) {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, (*known)[name]) // a Builder takes everything
		}
	}
	_ = w.Flush()
	return b.String()
}

// method is the rule of one method, compiled.
type method struct {
	rule     locker.Rule // without the Key
	template *key.Template[*call]
	made     KeyFunc
	early    bool  // the key needs no request
	err      error // why it makes no sense
}

// String is the method's line in Describe.
func (m *method) String() string {
	switch {
	case m == nil:
		return "no lock"
	case m.err != nil:
		return m.err.Error()
	case m.template != nil:
		return m.rule.Mode.String() + " " + m.template.String()
	}
	return m.rule.Mode.String() + " " + m.rule.Name + " by a function"
}

func (m *method) key(ctx context.Context, c *call) (string, error) {
	if m.template != nil {
		return m.template.Key(ctx, c)
	}
	k, err := m.made.of(c.req)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", locker.ErrInvalidRule, err)
	case k == "":
		return "", fmt.Errorf("%w: the request makes an empty one", locker.ErrInvalidKey)
	}
	return k, nil
}

// method returns the rule of a method, nil when it has none.
func (r *Rules) method(fullMethod string) *method {
	if known := r.bound.Load(); known != nil {
		if m, ok := (*known)[fullMethod]; ok {
			return m
		}
	}
	m, exists := r.resolve(fullMethod)
	if !exists { // a name that a client made up must not be remembered
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	grown := map[string]*method{fullMethod: m}
	if known := r.bound.Load(); known != nil {
		maps.Copy(grown, *known)
	}
	r.bound.Store(&grown)
	return m
}

// resolve reads the rule of a method. exists: somebody has described the method, or given it a rule.
func (r *Rules) resolve(fullMethod string) (m *method, exists bool) {
	described := describe(fullMethod)
	rule, explicit := r.explicit[fullMethod]
	var err error
	if !explicit && r.annotated && described != nil {
		rule, err = annotation(described)
	}
	switch {
	case err != nil:
		m = &method{err: err}
	case rule.Key == "" && rule.Func.of == nil:
		if !reflect.ValueOf(rule).IsZero() {
			m = &method{err: errors.New("the rule has no Key; give one, or leave the rule out")}
		}
	default:
		m = compile(rule, fullMethod, described, r.secret)
	}
	if m != nil && m.err != nil {
		m.err = fmt.Errorf("grpclock: %s: %w", fullMethod, m.err)
	}
	return m, explicit || described != nil
}

// describe finds the descriptor of a method; nil when this program has none.
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

// compile makes a method of a rule, or says in it why that makes no sense.
func compile(r Rule, fullMethod string, described protoreflect.MethodDescriptor, secret []byte) *method {
	m := &method{made: r.Func, rule: locker.Rule{
		Name: r.Name, Mode: r.Mode, Wait: r.Wait, TTL: r.TTL, AtLeast: r.AtLeast, AtMost: r.AtMost, Once: r.Once,
	}}
	if m.err = r.check(); m.err != nil {
		return m
	}
	var request protoreflect.MessageDescriptor
	if described != nil {
		request = described.Input()
	}
	if r.Func.of != nil {
		m.rule.Name = cmp.Or(r.Name, methodName(fullMethod))
		if request != nil && r.Func.request != "" && r.Func.request != request.FullName() {
			m.err = fmt.Errorf("the Func makes keys of %s, and the request is a %s", r.Func.request, request.FullName())
		}
		return m
	}
	if m.template, m.err = grammar(request, secret).Compile(r.Key); m.err != nil {
		return m
	}
	m.rule.Name = cmp.Or(r.Name, m.template.Name())
	m.early = true
	for _, part := range m.template.Parts() {
		m.early = m.early && part.Source != "req"
	}
	return m
}

// check finds what no Locker would take.
func (r Rule) check() error {
	if r.Key != "" && r.Func.of != nil {
		return errors.New("the rule has a Key and a Func; give one of them")
	}
	if r.Mode > locker.Shared {
		return fmt.Errorf("the mode %d is neither exclusive nor shared", r.Mode)
	}
	if r.Wait < 0 && r.Wait != locker.NoWait {
		return fmt.Errorf("the wait is %v; give a positive time, or none: NoWait in Go, 0 in a .proto file", r.Wait)
	}
	for _, t := range []struct {
		what  string
		value time.Duration
	}{{"ttl", r.TTL}, {"once", r.Once}, {"at_least", r.AtLeast}, {"at_most", r.AtMost}} {
		if t.value != 0 && t.value < time.Millisecond {
			return fmt.Errorf("%s is %v; the shortest is 1ms, leave it out for none", t.what, t.value)
		}
	}
	if r.AtMost != 0 && r.AtMost < r.AtLeast {
		return fmt.Errorf("at_most %v is shorter than at_least %v", r.AtMost, r.AtLeast)
	}
	return nil
}
