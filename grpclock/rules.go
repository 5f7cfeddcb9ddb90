package grpclock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

// Rules define the locks of each method of a server. They are compiled once: by [Rules.Bind], or
// method by method with the first call. Make them with [FromDescriptors] or [FromMap]. They are
// safe for concurrent use.
type Rules struct {
	annotated bool // the rules are read from the .proto files
	explicit  RuleMap
	vocabulary

	bound atomic.Bool                        // Bind has succeeded
	known atomic.Pointer[map[string]*method] // the rules by method; nil for a method without a lock

	mu      sync.Mutex // held while the fields known, unary and streams are changed
	unary   []*guard   // the unary interceptors that were made from these Rules
	streams []*guard
}

// FromDescriptors returns the rules of the .proto files of the services.
func FromDescriptors() *Rules { return &Rules{annotated: true} }

// FromMap returns rules that were written in Go. It ignores the annotations of .proto files.
func FromMap(rules RuleMap) *Rules { return (&Rules{}).With(rules) }

// With returns these rules together with the rules of the parameter, which have precedence.
func (r *Rules) With(rules RuleMap) *Rules {
	more := r.clone()
	maps.Copy(more.explicit, rules)
	return more
}

// WithSecret returns these rules with a secret for the parts of keys that end with |hmac: at least
// 16 random bytes, the same in all processes.
func (r *Rules) WithSecret(secret []byte) *Rules {
	more := r.clone()
	more.secret = slices.Clone(secret)
	return more
}

// WithClaims returns these rules with {claim.NAME} as a part of keys. The part is the value of NAME
// in the map that the function claims returns: the claims of the caller, or anything else that
// belongs to the call, such as its region. Authentication must have put the claims into the call's
// context, so its interceptor must run before grpclock's.
func (r *Rules) WithClaims(claims func(ctx context.Context) map[string]any) *Rules {
	more := r.clone()
	more.claims = claims
	return more
}

func (r *Rules) clone() *Rules {
	c := &Rules{annotated: r.annotated, explicit: maps.Clone(r.explicit), vocabulary: r.vocabulary}
	if c.explicit == nil {
		c.explicit = make(RuleMap)
	}
	return c
}

// guardedBy records an interceptor that was made from these Rules.
func (r *Rules) guardedBy(g *guard, unary, streams bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if unary {
		r.unary = append(r.unary, g)
	}
	if streams {
		r.streams = append(r.streams, g)
	}
}

// Bind compiles the rules of all methods of a server. Call it when the services are registered,
// before Serve. Its error names every mistake and how to correct it:
//
//   - an invalid rule: a field that the request does not have, a negative time;
//   - a rule that the Locker can never grant: SHARED without readers, a TTL above its maximum;
//   - a rule for a method that the server does not have;
//   - a rule for a stream, if no stream interceptor was made from these Rules; a rule for a unary
//     method, if no unary interceptor was made from these Rules;
//   - that there is no rule at all.
func (r *Rules) Bind(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
},
) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make(map[string]*method)
	var problems []error
	var unary, streams []string // the methods that have rules
	services := server.GetServiceInfo()
	for _, service := range slices.Sorted(maps.Keys(services)) {
		for _, info := range services[service].Methods {
			name := "/" + service + "/" + info.Name
			m, _ := r.resolve(name)
			if known[name] = m; m == nil {
				continue
			}
			if info.IsClientStream || info.IsServerStream {
				streams = append(streams, name)
				r.enforce(name, m, r.streams)
			} else {
				unary = append(unary, name)
				r.enforce(name, m, r.unary)
			}
			if m.err != nil {
				problems = append(problems, m.err)
			}
		}
	}
	if len(unary) > 0 && len(r.unary) == 0 {
		problems = append(problems, unenforced("UnaryServerInterceptor", unary))
	}
	if len(streams) > 0 && len(r.streams) == 0 {
		problems = append(problems, unenforced("StreamServerInterceptor", streams))
	}
	for _, name := range slices.Sorted(maps.Keys(r.explicit)) {
		if _, registered := known[name]; !registered {
			problems = append(problems, fmt.Errorf("grpclock: %s has a rule, and the server has no such method; "+
				"write it as generated code does, in Service_Method_FullMethodName", name))
		}
	}
	if len(unary)+len(streams)+len(problems) == 0 {
		problems = append(problems, errors.New("grpclock: no method of the server has a rule, so nothing is guarded; "+
			"register the services before Bind, and annotate methods in their .proto files, or name them in a RuleMap"))
	}
	if before := r.known.Load(); before != nil { // the methods that are known from other servers
		for name, m := range *before {
			if _, ok := known[name]; !ok {
				known[name] = m
			}
		}
	}
	r.known.Store(&known)
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	r.bound.Store(true)
	return nil
}

// unenforced returns the error for methods whose rules no interceptor enforces.
func unenforced(interceptor string, methods []string) error {
	return fmt.Errorf("grpclock: no %s was made of these Rules, so nothing guards %s; make the server with "+
		"ServerOptions of these Rules", interceptor, strings.Join(methods, ", "))
}

// enforce records an error in m if the interceptors cannot enforce the rule of this method.
func (r *Rules) enforce(name string, m *method, guards []*guard) {
	for _, g := range guards {
		if m.err != nil {
			return
		}
		if err := g.check(m); err != nil {
			m.err = fmt.Errorf("grpclock: %s: %w", name, err)
		}
	}
}

// Unguarded returns the known methods that run without a lock. After Bind, all methods of the
// server are known.
func (r *Rules) Unguarded() []string {
	var names []string
	if known := r.known.Load(); known != nil {
		for _, name := range slices.Sorted(maps.Keys(*known)) {
			if (*known)[name] == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// method returns the rule of a method, or nil when the method has no rule.
func (r *Rules) method(fullMethod string) *method {
	if known := r.known.Load(); known != nil {
		if m, ok := (*known)[fullMethod]; ok {
			return m
		}
	}
	m, exists := r.resolve(fullMethod)
	if !exists { // the name is not stored, because a client may have invented it
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	grown := map[string]*method{fullMethod: m}
	if known := r.known.Load(); known != nil {
		maps.Copy(grown, *known)
	}
	r.known.Store(&grown)
	return m
}

// resolve compiles the rule of a method. exists reports whether a descriptor or a rule names the
// method.
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
	case !rule.empty():
		m = r.compile(rule, fullMethod, described)
	case !rule.zero():
		m = &method{err: errors.New("the rule has no Key; give one, or leave the rule out")}
	}
	if m != nil && m.err != nil {
		m.err = fmt.Errorf("grpclock: %s: %w", fullMethod, m.err)
	}
	return m, explicit || described != nil
}
