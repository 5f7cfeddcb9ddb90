package grpclock

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/latchkit/latchkit/grpclock/lockpb"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// annotation is the rule that stands in a .proto file; the zero Rule when there is none.
func annotation(m protoreflect.MethodDescriptor) (Rule, error) {
	options := m.Options()
	if !proto.HasExtension(options, lockpb.E_Lock) {
		return Rule{}, nil
	}
	lock, ok := proto.GetExtension(options, lockpb.E_Lock).(*lockpb.Lock)
	if !ok {
		return Rule{}, fmt.Errorf("the option %s is not a %T; generate the service's code anew", lockpb.E_Lock.TypeDescriptor().FullName(), lock)
	}
	if len(lock.ProtoReflect().GetUnknown()) > 0 {
		return Rule{}, fmt.Errorf("the option %s has a field that this version does not know; use the version whose lock.proto you import", lockpb.E_Lock.TypeDescriptor().FullName())
	}
	if lock.GetKey() == "" {
		return Rule{}, fmt.Errorf("the option %s has no key; give one, or leave it out", lockpb.E_Lock.TypeDescriptor().FullName())
	}
	if m := lock.GetMode(); m != lockpb.Lock_EXCLUSIVE && m != lockpb.Lock_SHARED {
		return Rule{}, fmt.Errorf("the mode %d is neither EXCLUSIVE nor SHARED", m)
	}
	r := Rule{Key: key.Key(lock.GetKey()), Name: lock.GetName(), Mode: locker.Mode(lock.GetMode())} //nolint:gosec // one of the two
	for _, t := range []struct {
		what string
		from *durationpb.Duration
		to   *time.Duration
	}{
		{"wait", lock.GetWait(), &r.Wait},
		{"ttl", lock.GetTtl(), &r.TTL},
		{"once", lock.GetOnce(), &r.Once},
		{"at_least", lock.GetAtLeast(), &r.AtLeast},
		{"at_most", lock.GetAtMost(), &r.AtMost},
	} {
		if t.from == nil {
			continue
		}
		*t.to = t.from.AsDuration()
		switch {
		case t.from.CheckValid() != nil || *t.to < 0:
			return Rule{}, fmt.Errorf("%s is %d s and %d ns, which is no time to wait or to hold; give a positive one", t.what, t.from.GetSeconds(), t.from.GetNanos())
		case *t.to == 0 && t.what == "wait":
			r.Wait = locker.NoWait
		case *t.to == 0:
			return Rule{}, fmt.Errorf("%s is 0; the shortest is 1ms, leave it out for none", t.what)
		}
	}
	return r, nil
}
