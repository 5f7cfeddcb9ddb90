package delegate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/delegate"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var signing = bytes.Repeat([]byte("k"), 16)

// kinds has the options for each of the two ways to delegate.
var kinds = map[string][]delegate.Option{
	"by secret":    nil,
	"by signature": {delegate.WithSigning(signing)},
}

// service is a process with a Locker. It calls other services, and is called by them.
type service struct {
	*locker.Engine
	sender   *delegate.Sender
	receiver *delegate.Receiver
}

func newService(t testing.TB, store *lockertest.Memory, opts ...delegate.Option) service {
	t.Helper()
	return serviceOf(t, lockertest.NewLocker(t, store), opts...)
}

func serviceOf(t testing.TB, l *locker.Engine, opts ...delegate.Option) service {
	t.Helper()
	sender, err := delegate.NewSender(opts...)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := delegate.NewReceiver(l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return service{l, sender, receiver}
}

// token returns the delegation that the service sends under the leases of ctx.
func (s service) token(ctx context.Context, t testing.TB) []byte {
	t.Helper()
	token, err := s.sender.Token(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// join makes a call that comes with token. The call asks the service for the lock of key, and does
// not wait.
func (s service) join(t testing.TB, token []byte, key string) (*locker.Lease, error) {
	t.Helper()
	ctx, err := s.receiver.With(t.Context(), token)
	if err != nil {
		return nil, err
	}
	lease, err := s.receiver.Acquire(ctx, locker.Rule{Key: key, Wait: locker.NoWait})
	if err == nil {
		t.Cleanup(func() { _ = lease.Release(context.Background()) })
	}
	return lease, err
}

// runLocked runs fn while the service holds the lock of key.
func (s service) runLocked(t testing.TB, key string, fn func(ctx context.Context, lease *locker.Lease)) {
	t.Helper()
	err := locker.Run(t.Context(), s, locker.Rule{Key: key, Wait: 10 * time.Second}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		fn(ctx, lease)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestACallRunsUnderItsCallersLease(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			store := lockertest.NewMemory()
			shop, inventory := newService(t, store, opts...), newService(t, store, opts...)
			shop.runLocked(t, "order:42", func(ctx context.Context, lease *locker.Lease) {
				if _, err := inventory.Acquire(t.Context(), locker.Rule{Key: "order:42", Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
					t.Errorf("without a delegation: %v", err)
				}
				token := shop.token(ctx, t)
				joined, err := inventory.join(t, token, "order:42")
				if err != nil {
					t.Fatal(err)
				}
				if joined.Fence() != lease.Fence() || joined.Key() != "order:42" {
					t.Errorf("joined %v, the caller has %v", joined, lease)
				}
				again, err := inventory.join(t, token, "order:42") // a client that retries has repeated the call
				if err != nil {
					t.Error(err)
				} else if err := again.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if err := joined.Context().Err(); err != nil {
					t.Errorf("one join ended another: %v", err)
				}
				if err := joined.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if err := lease.Context().Err(); err != nil {
					t.Errorf("the call released its caller's lease: %v", err)
				}
				own, err := inventory.join(t, token, "order:43") // the caller does not hold this lock
				if err != nil || own.Fence() == lease.Fence() {
					t.Errorf("another order: %v, %v", own, err)
				}
			})
		})
	}
}

func TestWithoutALeaseNothingIsSent(t *testing.T) {
	s := newService(t, lockertest.NewMemory())
	if token := s.token(t.Context(), t); token != nil {
		t.Errorf("%x", token)
	}
	if ctx, err := s.receiver.With(t.Context()); err != nil || ctx != t.Context() {
		t.Error(err)
	}
}

func TestSeveralLeasesTravelTogether(t *testing.T) {
	store := lockertest.NewMemory()
	shop, inventory := newService(t, store), newService(t, store)
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	var nest func(ctx context.Context, depth int)
	nest = func(ctx context.Context, depth int) {
		if depth < len(keys) {
			if err := locker.Run(ctx, shop, locker.Rule{Key: keys[depth]}, func(ctx context.Context) error { nest(ctx, depth+1); return nil }); err != nil {
				t.Error(err)
			}
			return
		}
		token := shop.token(ctx, t)
		for i, key := range keys {
			_, err := inventory.join(t, token, key)
			if innermost := i >= len(keys)-8; innermost && err != nil || !innermost && !errors.Is(err, locker.ErrBusy) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	nest(t.Context(), 0)
}

// A lock that is held twice, because it is nested, is delegated only once. So this lock takes
// only one place in the token.
func TestALockThatIsHeldTwiceTravelsOnce(t *testing.T) {
	store := lockertest.NewMemory()
	shop, inventory := newService(t, store), newService(t, store)
	again := locktest.Reentrant(t, shop)
	hold := func(ctx context.Context, key string, fn func(context.Context) error) {
		if err := locker.Run(ctx, again, locker.Rule{Key: key, Wait: locker.NoWait}, fn); err != nil {
			t.Error(err)
		}
	}
	var once []byte
	hold(t.Context(), "outer", func(ctx context.Context) error {
		hold(ctx, "order:42", func(ctx context.Context) error {
			once = shop.token(ctx, t)
			hold(ctx, "order:42", func(ctx context.Context) error {
				token := shop.token(ctx, t)
				if len(token) != len(once) {
					t.Errorf("%d bytes, without the second hold %d", len(token), len(once))
				}
				for _, key := range []string{"order:42", "outer"} {
					if _, err := inventory.join(t, token, key); err != nil {
						t.Errorf("%s: %v", key, err)
					}
				}
				return nil
			})
			return nil
		})
		return nil
	})
}

// Any change of a delegation makes it invalid. First, the test checks that the unchanged delegation
// is valid.
func TestForgedDelegationsOpenNothing(t *testing.T) {
	for kind, opts := range kinds {
		for name, forge := range map[string]struct {
			change func(token []byte) []byte
			want   error
		}{
			"control":   {func(token []byte) []byte { return token }, nil},
			"forged":    {func(token []byte) []byte { _, _ = rand.Read(token[len(token)-16:]); return token }, delegate.ErrRefused},
			"a field":   {func(token []byte) []byte { token[17] ^= 1; return token }, delegate.ErrRefused},
			"one bit":   {func(token []byte) []byte { token[len(token)-1] ^= 1; return token }, delegate.ErrRefused},
			"cut":       {func(token []byte) []byte { return token[:len(token)-1] }, delegate.ErrMalformed},
			"grown":     {func(token []byte) []byte { return append(token, 0) }, delegate.ErrMalformed},
			"empty":     {func([]byte) []byte { return []byte{} }, delegate.ErrMalformed},
			"version":   {func(token []byte) []byte { token[0]++; return token }, delegate.ErrMalformed},
			"kind":      {func(token []byte) []byte { token[1] = 9; return token }, delegate.ErrMalformed},
			"header":    {func(token []byte) []byte { return token[:1] }, delegate.ErrMalformed},
			"oversized": {func(token []byte) []byte { return bytes.Repeat(token, 100) }, delegate.ErrMalformed},
			"many": {func(token []byte) []byte {
				return append([]byte{1}, bytes.Repeat(append([]byte{1}, make([]byte, 24)...), 9)...)
			}, delegate.ErrMalformed},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				store := lockertest.NewMemory()
				shop, inventory := newService(t, store, opts...), newService(t, store, opts...)
				shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
					token := forge.change(bytes.Clone(shop.token(ctx, t)))
					lease, err := inventory.join(t, token, "order:42")
					if forge.want == nil && err != nil || forge.want != nil && !errors.Is(err, forge.want) {
						t.Errorf("%v, %v", lease, err)
					}
				})
			})
		}
	}
}

func TestADelegationForOneKeyDoesNotOpenAnother(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			store := lockertest.NewMemory()
			shop, victim, inventory := newService(t, store, opts...), newService(t, store, opts...), newService(t, store, opts...)
			victim.runLocked(t, "order:43", func(context.Context, *locker.Lease) {
				shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
					token := shop.token(ctx, t)
					if lease, err := inventory.join(t, delegate.ForKey(token, "order:43"), "order:43"); !errors.Is(err, delegate.ErrRefused) {
						t.Errorf("%v, %v", lease, err)
					}
					if _, err := inventory.join(t, token, "order:43"); !errors.Is(err, locker.ErrBusy) {
						t.Errorf("what was made for another key counts: %v", err)
					}
				})
			})
		})
	}
}

func TestADelegationEndsWithItsLease(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			store := lockertest.NewMemory()
			shop, inventory := newService(t, store, opts...), newService(t, store, opts...)
			var token []byte
			shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) { token = shop.token(ctx, t) })
			if lease, err := inventory.join(t, token, "order:42"); !errors.Is(err, delegate.ErrRefused) {
				t.Errorf("replayed after the release: %v, %v", lease, err)
			}
			shop.runLocked(t, "order:42", func(context.Context, *locker.Lease) {
				if lease, err := inventory.join(t, token, "order:42"); !errors.Is(err, delegate.ErrRefused) {
					t.Errorf("replayed under the next holder: %v, %v", lease, err)
				}
			})
			e, _ := errtype.As[*locker.Error](func() error { _, err := inventory.join(t, token, "order:42"); return err }())
			if e == nil || e.Key != "order:42" || e.Op != locker.OpAcquire {
				t.Errorf("%+v", e)
			}
		})
	}
}

// When a lease is handed over to the next caller of the same process, the lease gets another
// fence but keeps its token on the server. A delegation that was made before the hand-off must
// not be valid after the hand-off.
func TestADelegationDoesNotSurviveAHandoffInsideTheProcess(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				shop, inventory := newService(t, store, opts...), newService(t, store, opts...)
				var token []byte
				var waits bool
				next := make(chan struct{})
				shop.runLocked(t, "order:42", func(ctx context.Context, first *locker.Lease) {
					go func() {
						defer close(next)
						waits = true
						shop.runLocked(t, "order:42", func(context.Context, *locker.Lease) {
							if lease, err := inventory.join(t, token, "order:42"); !errors.Is(err, delegate.ErrRefused) {
								t.Errorf("%v, %v", lease, err)
							}
						})
					}()
					synctest.Wait()
					token = shop.token(ctx, t)
				})
				<-next
				if !waits {
					t.Error("nobody waited")
				}
			})
		})
	}
}

func TestADelegationHasATimeOfItsOwn(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				opts := append([]delegate.Option{delegate.WithTimeout(5 * time.Second)}, opts...)
				shop, inventory := newService(t, store, opts...), newService(t, store, opts...)
				shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
					token := shop.token(ctx, t)
					early, err := inventory.join(t, token, "order:42")
					if err != nil {
						t.Fatal(err)
					}
					<-time.After(5*time.Second + time.Millisecond)
					if lease, err := inventory.join(t, token, "order:42"); !errors.Is(err, delegate.ErrRefused) {
						t.Errorf("late: %v, %v", lease, err)
					}
					<-time.After(time.Minute)
					if err := early.Context().Err(); err != nil {
						t.Errorf("a call that had begun in time: %v", context.Cause(early.Context()))
					}
					if kind == "by signature" {
						if lease, err := inventory.join(t, delegate.Longer(token, time.Hour), "order:42"); !errors.Is(err, delegate.ErrRefused) {
							t.Errorf("with another end: %v, %v", lease, err)
						}
					}
				})
			})
		})
	}
}

func TestSignaturesAreForTheirAudienceAndTheirKey(t *testing.T) {
	other := bytes.Repeat([]byte("o"), 16)
	for name, tc := range map[string]struct {
		sender, receiver []delegate.Option
		ok               bool
	}{
		"the same key":             {[]delegate.Option{delegate.WithSigning(signing)}, []delegate.Option{delegate.WithSigning(signing)}, true},
		"an older key":             {[]delegate.Option{delegate.WithSigning(signing)}, []delegate.Option{delegate.WithSigning(other, signing)}, true},
		"another key":              {[]delegate.Option{delegate.WithSigning(other)}, []delegate.Option{delegate.WithSigning(signing)}, false},
		"no key":                   {[]delegate.Option{delegate.WithSigning(signing)}, nil, false},
		"the same audience":        {[]delegate.Option{delegate.WithSigning(signing), delegate.WithAudience("a")}, []delegate.Option{delegate.WithSigning(signing), delegate.WithAudience("a")}, true},
		"another audience":         {[]delegate.Option{delegate.WithSigning(signing), delegate.WithAudience("a")}, []delegate.Option{delegate.WithSigning(signing), delegate.WithAudience("b")}, false},
		"no audience":              {[]delegate.Option{delegate.WithSigning(signing), delegate.WithAudience("a")}, []delegate.Option{delegate.WithSigning(signing)}, false},
		"a secret, where keys are": {nil, []delegate.Option{delegate.WithSigning(signing)}, true},
		"a much longer time":       {[]delegate.Option{delegate.WithSigning(signing), delegate.WithTimeout(time.Hour)}, []delegate.Option{delegate.WithSigning(signing)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			shop, inventory := newService(t, store, tc.sender...), newService(t, store, tc.receiver...)
			shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
				_, err := inventory.join(t, shop.token(ctx, t), "order:42")
				if tc.ok && err != nil || !tc.ok && !errors.Is(err, delegate.ErrRefused) {
					t.Error(err)
				}
			})
		})
	}
}

func TestEverythingThatASignatureClaimsIsSigned(t *testing.T) {
	for name, change := range delegate.Claims {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			shop, inventory := newService(t, store, delegate.WithSigning(signing)), newService(t, store, delegate.WithSigning(signing))
			shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
				_, err := inventory.join(t, change(shop.token(ctx, t)), "order:42")
				if control := name == "nothing, control"; control && err != nil || !control && !errors.Is(err, delegate.ErrRefused) {
					t.Error(err)
				}
			})
		})
	}
}

// The key and the audience are not sent. So only the signature proves that a delegation is for this
// key and this audience.
func TestASignatureTellsKeysAndAudiencesApart(t *testing.T) {
	seen := make(map[[32]byte]string)
	for _, of := range [][2]string{{"a", ""}, {"b", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc", ""}} {
		mac := delegate.SignatureFor(of[0], of[1])
		if other, ok := seen[mac]; ok {
			t.Errorf("%q has the signature of %s", of, other)
		}
		seen[mac] = fmt.Sprintf("%q", of)
	}
}

func TestALeaseTravelsOverSoManyHops(t *testing.T) {
	for kind, opts := range kinds {
		t.Run(kind, func(t *testing.T) {
			store := lockertest.NewMemory()
			opts := append([]delegate.Option{delegate.WithDepth(2)}, opts...)
			first, second, third := newService(t, store, opts...), newService(t, store, opts...), newService(t, store, opts...)
			first.runLocked(t, "order:42", func(ctx context.Context, lease *locker.Lease) {
				call := func(s service, token []byte, do func(ctx context.Context)) {
					ctx, err := s.receiver.With(t.Context(), token)
					if err == nil {
						err = locker.Run(ctx, s.receiver, locker.Rule{Key: "order:42", Wait: locker.NoWait}, func(ctx context.Context) error {
							if joined, _ := locker.FromContext(ctx); joined.Fence() != lease.Fence() {
								t.Errorf("the fence %d became %d", lease.Fence(), joined.Fence())
							}
							do(ctx)
							return nil
						})
					}
					if err != nil {
						t.Error(err)
					}
				}
				call(second, first.token(ctx, t), func(ctx context.Context) {
					call(third, second.token(ctx, t), func(ctx context.Context) {
						if token := third.token(ctx, t); token != nil {
							t.Errorf("a third hop: %x", token)
						}
					})
				})
			})
		})
	}
}

func TestALostLeaseIsNotDelegated(t *testing.T) {
	store := lockertest.NewMemory()
	shop := newService(t, store)
	err := locker.Run(t.Context(), shop, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
		store.Steal("order:42")
		token, err := shop.sender.Token(ctx)
		if token != nil || !errors.Is(err, locker.ErrLost) {
			t.Errorf("%x, %v", token, err)
		}
		return nil
	})
	_ = err // may be nil: the lease notices its loss before its release or only during it
	store.Free("order:42")
	lease, err := shop.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := lease.Context()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if token, err := shop.sender.Token(ctx); token != nil || !errors.Is(err, locker.ErrReleased) {
		t.Errorf("after the release: %x, %v", token, err)
	}
}

func TestASecretIsNotShown(t *testing.T) {
	store := lockertest.NewMemory()
	shop, inventory := newService(t, store), newService(t, store)
	shop.runLocked(t, "order:42", func(ctx context.Context, _ *locker.Lease) {
		token := shop.token(ctx, t)
		ctx, err := inventory.receiver.With(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		secret := token[len(token)-16:]
		for _, shown := range []string{fmt.Sprint(ctx), fmt.Sprintf("%v %+v", ctx, ctx)} {
			if strings.Contains(shown, fmt.Sprintf("%v", secret)) || strings.Contains(shown, fmt.Sprintf("%x", secret)) || strings.Contains(shown, string(secret)) {
				t.Errorf("a context shows the secret: %s", shown)
			}
		}
	})
}

func TestArgumentsThatMakeNoSense(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, opts := range map[string][]delegate.Option{
		"nil":               {nil},
		"a short key":       {delegate.WithSigning([]byte("short"))},
		"a short older key": {delegate.WithSigning(signing, nil)},
		"no hop":            {delegate.WithDepth(0)},
		"too many hops":     {delegate.WithDepth(101)},
		"no time":           {delegate.WithTimeout(0)},
		"a long audience":   {delegate.WithAudience(strings.Repeat("a", 257))},
	} {
		if _, err := delegate.NewSender(opts...); err == nil || !strings.HasPrefix(err.Error(), "delegate: NewSender: ") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := delegate.NewReceiver(l, opts...); err == nil || !strings.HasPrefix(err.Error(), "delegate: NewReceiver: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, l := range map[string]locker.Locker{"nil": nil, "a nil Engine": (*locker.Engine)(nil), "one that cannot": struct{ locker.Locker }{l}} {
		if _, err := delegate.NewReceiver(l); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// FuzzParse checks that no input makes the parser panic, and that an accepted token is encoded to
// the same text again.
func FuzzParse(f *testing.F) {
	store := lockertest.NewMemory()
	for _, opts := range kinds {
		l, err := locker.New(store.NewProcess())
		if err != nil {
			f.Fatal(err)
		}
		s := serviceOf(f, l, opts...)
		s.runLocked(f, "order:42", func(ctx context.Context, _ *locker.Lease) { f.Add(s.token(ctx, f)) })
	}
	f.Add([]byte{1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, token []byte) {
		again, err := delegate.Reread(token)
		if err == nil && !bytes.Equal(again, token) {
			t.Errorf("%x was read as %x", token, again)
		}
		if err != nil && !errors.Is(err, delegate.ErrMalformed) {
			t.Error(err)
		}
		if len(token) > delegate.MaxToken && err == nil {
			t.Errorf("%d bytes were taken", len(token))
		}
	})
}
