package grpclock

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// option is the full name of the annotation. The option is found by its name instead of its number,
// because the number can differ. If an organisation uses the number 57305 for an option of its own,
// it changes the number in a copy of lock.proto. Then it generates the code of its services with
// this copy. For the same reason, this package does not import lockpb, which registers the number.
const option protoreflect.FullName = "latchkit.lock.v1.lock"

// annotation returns the rule in the .proto file, or the zero Rule.
func annotation(m protoreflect.MethodDescriptor) (r Rule, err error) {
	lock, found := optionOf(m)
	if !found {
		return r, nil
	}
	if lock == nil {
		return r, fmt.Errorf("the option %s is not a message; copy lock.proto, and change only the number and go_package", option)
	}
	if len(lock.GetUnknown()) > 0 {
		return r, fmt.Errorf("the option %s has a field that this version does not know; use the version whose lock.proto you import", option)
	}
	lock.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		err = r.set(f, v)
		return err == nil
	})
	if err == nil && r.empty() {
		err = fmt.Errorf("the option %s has no key; give one, or leave the option out", option)
	}
	return r, err
}

// optionOf finds the annotation of a method. lock is nil if the annotation is not a message.
func optionOf(m protoreflect.MethodDescriptor) (lock protoreflect.Message, found bool) {
	m.Options().ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.FullName() != option {
			return true
		}
		found = true
		if f.Message() != nil && !f.IsList() && !f.IsMap() {
			lock = v.Message()
		}
		return false
	})
	return lock, found
}

// set copies one field of the annotation into the rule.
func (r *Rule) set(f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch kind := f.Kind(); {
	case f.Name() == "keys" && f.IsList() && kind == protoreflect.StringKind:
		for i := range v.List().Len() {
			r.Keys = append(r.Keys, key.Key(v.List().Get(i).String()))
		}
		return nil
	case f.IsList() || f.IsMap():
	case kind == protoreflect.StringKind:
		switch f.Name() {
		case "key":
			r.Key = key.Key(v.String())
			return nil
		case "name":
			r.Name = v.String()
			return nil
		}
	case kind == protoreflect.Uint32Kind:
		switch f.Name() {
		case "limit":
			r.Limit = int(v.Uint())
			return nil
		case "weight":
			r.Weight = int(v.Uint())
			return nil
		}
	case f.Name() == "mode" && kind == protoreflect.EnumKind:
		if v.Enum() != 0 && v.Enum() != 1 {
			return fmt.Errorf("the mode %d is neither EXCLUSIVE nor SHARED", v.Enum())
		}
		r.Mode = locker.Mode(v.Enum())
		return nil
	case kind == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Duration":
		if to := r.time(f.Name()); to != nil {
			return setTime(string(f.Name()), v.Message(), to)
		}
	}
	return fmt.Errorf("the option %s has the field %s of type %s, which this version does not know; "+
		"use the version whose lock.proto you import", option, f.Name(), f.Kind())
}

// time returns the field of r for a time called name in the annotation.
func (r *Rule) time(name protoreflect.Name) *time.Duration {
	switch name {
	case "wait":
		return &r.Wait
	case "ttl":
		return &r.TTL
	case "once_for":
		return &r.OnceFor
	case "keep_for":
		return &r.KeepFor
	case "end_after":
		return &r.EndAfter
	}
	return nil
}

// setTime copies a time of the annotation into a field of the Rule.
func setTime(what string, from protoreflect.Message, to *time.Duration) error {
	fields := from.Descriptor().Fields()
	seconds, nanos := fields.ByName("seconds"), fields.ByName("nanos")
	if seconds == nil || nanos == nil {
		return errors.New("google.protobuf.Duration has no seconds or nanos")
	}
	d := &durationpb.Duration{Seconds: from.Get(seconds).Int(), Nanos: int32(from.Get(nanos).Int())}
	*to = d.AsDuration()
	switch {
	case d.CheckValid() != nil || *to < 0:
		return fmt.Errorf("%s is %d s and %d ns, which is not a valid duration; give a positive one", what, d.GetSeconds(), d.GetNanos())
	case *to == 0 && what == "wait":
		*to = locker.NoWait
	case *to == 0:
		return fmt.Errorf("%s is 0; the shortest is 1ms, leave it out for none", what)
	}
	return nil
}
