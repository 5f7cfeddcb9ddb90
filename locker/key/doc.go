// Package key makes the keys of locks out of requests. All adapters share its grammar, so that the same text means the same
// lock in an HTTP route, a gRPC method and a task.
//
// A [Key] is a template of literal text and of parts of a request:
//
//	order:{param.id}:{header.X-Tenant}
//
// A part is {SOURCE.NAME}, or {SOURCE} where the source has one value only. Which sources there are, the adapter says; to
// the same text a program comes by typed functions:
//
//	key.Join("order", ginlock.Param("id"), ginlock.Header("X-Tenant"))
//
// # What a key promises
//
// Different values make different keys, whatever a client sends. Between two parts stands a ':', and in values ':', '{',
// '}', '%' and control bytes are percent-encoded, so "a:b" and "c" never meet "a" and "b:c", and no brace decides on which
// node of a cluster the lock lies. A value that is longer than [MaxValue] bytes when encoded is replaced by '~' and its
// SHA-256; a '~' with which a value begins is encoded, so nobody can send such a hash.
//
// The same values make the same key in every process and in every version. An empty part is refused, with an [Error] that
// names it: a lock on "order:" would be everybody's.
//
// # What must stay private
//
// Keys are seen by whoever may look into Redis. A part that ends with |hmac, such as {claim.email|hmac}, is replaced by the
// HMAC-SHA-256 of its value under [Grammar.Secret]. All processes need the same secret: while one is exchanged for another,
// they lock different keys.
//
// # For adapters
//
// A [Grammar] has the sources of one kind of request. Its Compile reads a Key once, when the program starts, and returns a
// [Template], which makes the key of each request.
package key
