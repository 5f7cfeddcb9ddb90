package locker

import (
	"context"
	"strings"

	"github.com/latchkit/latchkit/locker/store"
)

// Keys returns, sorted, the keys that now have a holder or waiters or are kept by Rule.AtLeast.
// pattern is a glob-style pattern of Redis, such as "order:*"; "*" matches all keys. Keys looks at
// every key of the server, in many steps that do not block the server (SCAN). On a server with many
// keys, Keys takes seconds, so use it for operators and not in each request. A key that is locked
// or freed while Keys runs may be missing. If another library holds a key, the key is listed only
// while a waiter of latchkit waits for it.
//
// The end of ctx ends the call. Errors: ErrUnavailable, ErrUnsupported, ErrClosed, ctx.Err().
func (e *Engine) Keys(ctx context.Context, pattern string) ([]string, error) {
	s, ok := e.store.(store.Lister)
	if !ok {
		return nil, &Error{Op: OpInspect, Err: ErrUnsupported}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the scan ends when its caller returns
	all, err := inquire(ctx, e, OpInspect, "", func() ([]string, error) { return s.Keys(ctx, literal.Replace(e.cfg.prefix)+pattern) })
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], e.cfg.prefix)
	}
	return all, err
}

// literal escapes a text, so that the resulting pattern matches only this text.
var literal = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)
