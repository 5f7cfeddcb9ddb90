package delegate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// ErrRefused is locker.ErrRefused: the delegation was never valid, or is not valid any more.
var ErrRefused = locker.ErrRefused

// A Joiner is a Locker whose leases can be joined: an *locker.Engine whose Store supports joins.
type Joiner interface {
	locker.Locker
	Join(ctx context.Context, rule locker.Rule, p locker.Delegation) (*locker.Lease, error)
}

// A Receiver is a Locker that lets a call join the lease of the caller. [Receiver.With] puts the
// delegation into a context, and Acquire finds it in this context. If the context has no delegation
// for the key, the Receiver takes the lock as usual. A Receiver is safe for concurrent use.
type Receiver struct {
	config
	locker Joiner
}

var _ locker.Locker = (*Receiver)(nil)

// NewReceiver returns a Receiver over l. l must be a [Joiner], as an *locker.Engine is.
func NewReceiver(l locker.Locker, opts ...Option) (*Receiver, error) {
	if v := reflect.ValueOf(l); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("delegate: NewReceiver: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	j, ok := l.(Joiner)
	if !ok {
		return nil, fmt.Errorf("delegate: NewReceiver: the leases of a %T cannot be joined; give the *locker.Engine inside it", l)
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("delegate: NewReceiver: %w", err)
	}
	return &Receiver{c, j}, nil
}

type receivedKey struct{}

// With returns ctx with the delegations of the token that came with a call. The parameter tokens
// has all tokens that came with the call. More than one token is refused, because an attacker may
// have added one. If there is no token, the method returns ctx unchanged. The error is
// [ErrMalformed].
//
// Acquire, and not this method, checks whether a delegation is valid.
func (r *Receiver) With(ctx context.Context, tokens ...[]byte) (context.Context, error) {
	switch len(tokens) {
	case 0:
		return ctx, nil
	case 1:
	default:
		return ctx, fmt.Errorf("%w: there are %d delegations; send one", ErrMalformed, len(tokens))
	}
	entries, err := parse(tokens[0])
	if err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, receivedKey{}, entries), nil
}

// Acquire joins the delegated lease if ctx has a delegation for rule.Key. Otherwise Acquire
// takes the lock as usual. A join uses only Key, Name and TTL of its rule, see
// [locker.Engine.Join].
//
// For a delegation that is not valid, the error is ErrRefused, inside an [*locker.Error]. Then the
// caller's lease is over, so the requested work must not be done any more, or the delegation is
// forged. In both cases Acquire takes no lock.
func (r *Receiver) Acquire(ctx context.Context, rule locker.Rule) (*locker.Lease, error) {
	entries, _ := ctx.Value(receivedKey{}).([]entry)
	if len(entries) == 0 {
		return r.locker.Acquire(ctx, rule)
	}
	hint := hintOf(rule.Key)
	refused := error(nil)
	for i := range entries {
		if e := &entries[i]; e.hint == hint {
			lease, err := r.join(ctx, rule, e)
			if !errors.Is(err, ErrRefused) {
				return lease, err
			}
			refused = err
		}
	}
	if refused != nil {
		return nil, refused
	}
	return r.locker.Acquire(ctx, rule)
}

// join joins the lease that the delegation e names, for rule.
func (r *Receiver) join(ctx context.Context, rule locker.Rule, e *entry) (*locker.Lease, error) {
	p := locker.Delegation{Fence: e.fence, Hold: e.hold, Depth: int(e.depth)}
	if e.kind == bySecret {
		p = locker.Delegation{Secret: sha256.Sum256(e.secret[:])}
	} else if why := r.verify(e, rule.Key); why != "" {
		return nil, &locker.Error{Op: locker.OpAcquire, Key: rule.Key, Err: fmt.Errorf("%w: %s", ErrRefused, why)}
	}
	return r.locker.Join(ctx, rule, p)
}

// verify returns why the signature of e is not valid for key, or "" if the signature is valid.
func (r *Receiver) verify(e *entry, key string) string {
	good := false
	for _, k := range r.keys {
		mac := e.sign(k, key, r.audience)
		good = good || hmac.Equal(mac[:], e.mac[:])
	}
	switch now := time.Now(); {
	case len(r.keys) == 0:
		return "it is signed, and this service accepts no signatures; give the Receiver WithSigning"
	case !good:
		return "it was not signed for this key and this audience with a key of this service"
	case now.After(e.ends):
		return "it has expired"
	case e.ends.Sub(now) > 2*r.timeout:
		return "it is valid for longer than this service allows; compare WithTimeout and the clocks of the services"
	}
	return ""
}
