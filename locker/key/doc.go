// Package key makes the keys of locks from requests. All adapters share its grammar, so the same
// text names the same lock in an HTTP route, a gRPC method and a task.
//
// A [Key] is a template of literal text and of parts of a request:
//
//	order:{param.id|int}:{header.X-Tenant}
//
// A part is {SOURCE.NAME}, or {SOURCE} where the source has one value only. The adapter defines the
// sources. In a name, write %25, %7B, %7D and %7C for '%', '{', '}' and '|'.
//
// A program that makes a key by hand calls [Of], which encodes values as templates do:
//
//	locker.Rule{Key: key.Of("order", id, tenant)}
//
// # What a key promises
//
// Different values make different keys, whatever a client sends. Two parts have a ':' between them.
// In values, the bytes ':', '{', '}' and '%' and control bytes are percent-encoded. So "a:b" and
// "c" never make the same key as "a" and "b:c". A brace in a value cannot choose the cluster node
// of the lock. A value that is longer than 64 bytes when encoded is replaced by '~' and its
// SHA-256. A '~' at the beginning of a value is encoded, so a client cannot send such a hash.
//
// The same values make the same key in every process and in every version. An empty part is refused
// with an error that names the part, because all requests with an empty part would share the lock
// "order:".
//
// # One spelling for one identity
//
// The key is made of the bytes of a value. A handler often reads several spellings as the same
// identity. For example, strconv.Atoi reads "42", "042" and "+42" as 42. Then a client could hold
// several locks for one order. A filter gives each identity one spelling:
//
//	{param.id|int}       a whole number of any length, in decimal digits without leading zeros
//	{param.id|uuid}      a UUID, in lower case with dashes
//	{claim.email|lower}  lower case
//	{body.name|nfc}      Unicode's normal form C
//	{param.slug|text}    the text as it is: each spelling is an identity of its own
//
// A value that the filter cannot read, such as "x", " 42", "4_2" or "0x2a" for int, is refused. The
// program must read the same identity: |int is what strconv.Atoi reads, in base 10. Filters run
// from left to right.
//
// If the work must take effect once, every spelling would do it again. So adapters refuse a rule
// with OnceFor when the program starts, unless each part that a client chooses has such a filter.
//
// # What must stay private
//
// Every program that can read Redis can read the keys. A part that ends with |hmac, such as
// {claim.email|lower|hmac}, is replaced by the HMAC-SHA-256 of its value under the secret of the
// adapter (WithSecret). All processes need the same secret. While a secret is being replaced,
// processes with different secrets lock different keys.
//
// # Several keys
//
// A part whose name has the step "*" stands for several values, if its source supports lists. For
// example, stock:{body.items.*.sku} makes a key for each item of a basket. The adapter locks all
// keys of a request together, with locker.RunAll.
package key
