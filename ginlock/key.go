package ginlock

import (
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/key"
)

// Key is the text of a key's template, such as "order:{param.id}". The package's comment lists the
// parts.
type Key = key.Key

// Join puts a ':' between parts: Join("order", Param("id")) is "order:{param.id}".
func Join(parts ...Key) Key { return key.Join(parts...) }

// Param returns the part for the parameter of the route's path called name.
func Param(name string) Key { return httplock.Param(name) }

// Query returns the part for the first value of name in the URL's query.
func Query(name string) Key { return httplock.Query(name) }

// Header returns the part for the first value of a header.
func Header(name string) Key { return httplock.Header(name) }

// Cookie returns the part for the value of the first cookie called name, as gin.Context.Cookie
// returns it.
func Cookie(name string) Key { return httplock.Cookie(name) }

// ClientIP returns the part for the result of gin.Context.ClientIP. Set the engine's trusted
// proxies; otherwise clients can choose this address.
func ClientIP() Key { return httplock.ClientIP() }

// Value returns the part for the value that an earlier middleware has put into Gin's context by
// Set(name, …).
func Value(name string) Key { return httplock.Value(name) }

// Claim returns the part for the claim that [WithClaims] finds under name.
func Claim(name string) Key { return httplock.Claim(name) }

// Body returns the part for the member of the body's JSON at path: "sku", or "items.0.sku".
func Body(path string) Key { return httplock.Body(path) }

// Part returns the part that the function given to [WithPart] reads.
func Part(name string) Key { return httplock.Part(name) }

// HMAC replaces part by its HMAC under [WithSecret], so Redis does not see the value.
func HMAC(part Key) Key { return key.HMAC(part) }
