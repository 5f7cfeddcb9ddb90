package locker

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// together runs scripts in one pipeline, each once: those that a server does not know by name, by their text after that. Each
// has an answer or an error of its own.
func together(ctx context.Context, c pipeliner, calls []*call) {
	unknown := pipeline(ctx, c, calls, func(call *call) []any { return call.words })
	if len(unknown) > 0 {
		pipeline(ctx, c, unknown, (*call).inFull)
	}
}

// pipeline runs scripts in one pipeline, and returns those that a server did not know.
func pipeline(ctx context.Context, c pipeliner, calls []*call, words func(*call) []any) (unknown []*call) {
	p := c.Pipeline()
	sent := make([]once, len(calls))
	for i, call := range calls {
		sent[i] = once{redis.NewStringCmd(ctx, words(call)...)}
		_ = p.Process(ctx, sent[i]) // it is only kept until Exec
	}
	_, err := p.Exec(ctx)
	for i, call := range calls {
		call.text, call.err = sent[i].Result()
		switch {
		case call.err == nil && err != nil && call.text == "": // a hook has objected
			call.err = err
		case call.err != nil && redis.HasErrorPrefix(call.err, "NOSCRIPT"):
			unknown = append(unknown, call)
		case call.err != nil:
			call.err = refusal(call.err)
		}
	}
	return unknown
}
