package locker

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// call is a script that is about to be run, and then what became of it.
type call struct {
	script script
	keys   []string
	args   []any

	text string
	err  error
}

// call is what runs the script later.
func (s script) call(keys []string, args ...any) *call {
	return &call{script: s, keys: keys, args: args}
}

// together runs scripts in one pipeline, each once: those that a server does not know by name, by their text after that. Each
// has an answer or an error of its own.
func together(ctx context.Context, c pipeliner, calls []*call) {
	unknown := pipeline(ctx, c, calls, func(words []any, _ script) {})
	if len(unknown) > 0 {
		pipeline(ctx, c, unknown, func(words []any, s script) { words[0], words[1] = "eval", s.text })
	}
}

// pipeline runs scripts in one pipeline, and returns those that a server did not know.
func pipeline(ctx context.Context, c pipeliner, calls []*call, edit func(words []any, s script)) (unknown []*call) {
	p := c.Pipeline()
	sent := make([]once, len(calls))
	for i, call := range calls {
		words := command(call.script.sha, call.keys, call.args)
		edit(words, call.script)
		sent[i] = once{redis.NewStringCmd(ctx, words...)}
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
