// Package lockpb is what protoc makes of latchkit/lock/v1/lock.proto: the annotation with which a method says in its .proto
// file under which lock it runs. Code that protoc makes of annotated services imports it; programs have no other use for it.
package lockpb
