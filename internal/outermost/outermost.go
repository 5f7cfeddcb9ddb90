// Package outermost tells package locker which lease nobody waits for while holding another one, so
// that a wait under this lease closes no circle of waits.
package outermost

import "context"

type ctxKey struct{}

// With returns a context in which the lease of key is the first one that its holder takes.
func With(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, ctxKey{}, key)
}

// Is reports whether the lease of key is the first one.
func Is(ctx context.Context, key string) bool {
	first, ok := ctx.Value(ctxKey{}).(string)
	return ok && first == key
}
