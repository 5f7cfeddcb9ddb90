// Package copied_test is a program of an organisation that uses the number 57305 for its own
// option. lock.proto uses the same number, so the organisation has copied lock.proto and
// changed the number in the copy. The program must not import lockpb, not even through another
// package, because the two options would conflict.
package copied_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/latchkit/latchkit/grpclock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

const (
	taken = 57305
	free  = 57111
)

// register adds a file to the program's registry, as generated code does when it is imported.
func register(t *testing.T, file *descriptorpb.FileDescriptorProto) protoreflect.FileDescriptor {
	t.Helper()
	f, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Extensions().Len() {
		if err := protoregistry.GlobalTypes.RegisterExtension(dynamicpb.NewExtensionType(f.Extensions().Get(i))); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func extend(name string, number int32, typeName string) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{
		Name: new(name), Number: new(number), Extendee: new(".google.protobuf.MethodOptions"),
		Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
	}
	if typeName != "" {
		f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), new(typeName)
	}
	return f
}

func field(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, typeName string) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{
		Name: new(name), Number: new(number), Type: kind.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	if typeName != "" {
		f.TypeName = new(typeName)
	}
	return f
}

func TestACopyOfTheAnnotationWithAnotherNumberWorks(t *testing.T) {
	if _, err := protoregistry.GlobalTypes.FindExtensionByNumber("google.protobuf.MethodOptions", taken); err == nil {
		t.Fatal("grpclock registers the number 57305 in programs that do not use its lock.proto")
	}
	register(t, &descriptorpb.FileDescriptorProto{
		Name: new("acme/audit.proto"), Package: new("acme"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/descriptor.proto"}, Extension: []*descriptorpb.FieldDescriptorProto{extend("audit", taken, "")},
	})
	lock := register(t, &descriptorpb.FileDescriptorProto{
		Name: new("acme/lock.proto"), Package: new("latchkit.lock.v1"), Syntax: new("proto3"),
		Dependency: []string{"google/protobuf/descriptor.proto", "google/protobuf/duration.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Lock"), Field: []*descriptorpb.FieldDescriptorProto{
			field("key", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
			field("wait", 3, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".google.protobuf.Duration"),
		}}},
		Extension: []*descriptorpb.FieldDescriptorProto{extend("lock", free, ".latchkit.lock.v1.Lock")},
	})
	annotation := dynamicpb.NewMessage(lock.Messages().Get(0))
	fields := lock.Messages().Get(0).Fields()
	annotation.Set(fields.ByName("key"), protoreflect.ValueOfString("job:{req.name}"))
	annotation.Set(fields.ByName("wait"), protoreflect.ValueOfMessage((&durationpb.Duration{}).ProtoReflect()))
	options := &descriptorpb.MethodOptions{}
	proto.SetExtension(options, dynamicpb.NewExtensionType(lock.Extensions().Get(0)), annotation)
	jobs := register(t, &descriptorpb.FileDescriptorProto{
		Name: new("acme/jobs.proto"), Package: new("acme"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Job"), Field: []*descriptorpb.FieldDescriptorProto{
			field("name", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
		}}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new("Jobs"), Method: []*descriptorpb.MethodDescriptorProto{{
			Name: new("Run"), InputType: new(".acme.Job"), OutputType: new(".acme.Job"), Options: options,
		}}}},
	})

	intercept, err := grpclock.UnaryServerInterceptor(lockertest.NewLocker(t, lockertest.NewMemory()), grpclock.FromDescriptors())
	if err != nil {
		t.Fatal(err)
	}
	job := dynamicpb.NewMessage(jobs.Messages().Get(0))
	job.Set(jobs.Messages().Get(0).Fields().ByName("name"), protoreflect.ValueOfString("nightly"))
	key := ""
	_, err = intercept(t.Context(), job, &grpc.UnaryServerInfo{FullMethod: "/acme.Jobs/Run"}, func(ctx context.Context, _ any) (any, error) {
		if lease, ok := locker.FromContext(ctx); ok {
			key = lease.Key()
		}
		return job, nil
	})
	if err != nil || key != "job:nightly" {
		t.Errorf("locked %q, %v", key, err)
	}
}
