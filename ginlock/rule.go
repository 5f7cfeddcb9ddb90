package ginlock

import (
	"cmp"
	"context"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/locker"
)

// rule derives what to guard from a request.
func (m *middleware) rule(_ context.Context, c *gin.Context) (locker.Rule, error) {
	key, err := m.key.of(c)
	if err != nil {
		return locker.Rule{}, err
	}
	name := cmp.Or(m.name, m.key.name)
	r := locker.Rule{Key: key, Name: name, TTL: m.ttl, Wait: m.wait}
	for _, adjust := range m.adjust {
		adjust(c, &r)
	}
	// Without a name the Locker would take the beginning of the key, which may be the client's; without a bound the
	// wait of a client that is gone may have no end.
	r.Name, r.Wait = cmp.Or(r.Name, name), cmp.Or(r.Wait, m.wait)
	return r, nil
}
