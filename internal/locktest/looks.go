package locktest

import "context"

// Looks are the ways in which a program can find out that a context is over.
var Looks = map[string]func(ctx context.Context) bool{
	"Err":   func(ctx context.Context) bool { return ctx.Err() != nil },
	"Cause": func(ctx context.Context) bool { return context.Cause(ctx) != nil },
	"Done": func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	},
}
