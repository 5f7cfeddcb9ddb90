package ginlock

import (
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/key"
)

// Key is the text of a key's template, such as "order:{param.id}". The package's comment has the
// grammar.
type Key = key.Key

// Join puts a ':' between parts: Join("order", Param("id")) is "order:{param.id}".
func Join(parts ...Key) Key { return key.Join(parts...) }

// Param is the parameter of the route's path called name.
func Param(name string) Key { return httplock.Param(name) }

// Query is the first value of name in the URL's query.
func Query(name string) Key { return httplock.Query(name) }

// Header is the first value of a header.
func Header(name string) Key { return httplock.Header(name) }

// Cookie is the value of the first cookie called name, as it was sent.
func Cookie(name string) Key { return httplock.Cookie(name) }

// ClientIP is what gin.Context.ClientIP returns: set the engine's trusted proxies, or clients
// choose it.
func ClientIP() Key { return httplock.ClientIP() }

// Value is what an earlier middleware has put into Gin's context by Set(name, …).
func Value(name string) Key { return httplock.Value(name) }

// Claim is what [WithClaims] finds under name.
func Claim(name string) Key { return httplock.Claim(name) }

// Body is the member of the body's JSON that path leads to: "sku", or "items.0.sku".
func Body(path string) Key { return httplock.Body(path) }

// Part is what the function given to [WithPart] returns.
func Part(name string) Key { return httplock.Part(name) }

// HMAC is part, seen in Redis only as its HMAC under [WithSecret].
func HMAC(part Key) Key { return key.HMAC(part) }
