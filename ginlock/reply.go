package ginlock

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/httplock"
)

// outcomeKey is the key under which a gin.Context keeps the Problem. Gin before 1.11 accepts only
// strings as keys.
const outcomeKey = "github.com/latchkit/latchkit/ginlock.Outcome"

// Outcome returns the Problem of a request whose handler was not run, ran without its lock or lost
// it, or whose response was not stored, even if no reply could be written any more. Without a
// Problem, ok is false. Outcome is for loggers, after c.Next.
func Outcome(c *gin.Context) (*httplock.Problem, bool) {
	p, ok := c.Get(outcomeKey)
	if !ok {
		return nil, false
	}
	problem, ok := p.(*httplock.Problem)
	return problem, ok
}

// observe adds the failures that an operator should know of to c.Error. It does not add the error
// of a busy lock, because loggers and traces treat every error in c.Error as a failure.
func observe(r *http.Request, p *httplock.Problem) {
	v := visitOf(r)
	v.problem = p
	v.c.Set(outcomeKey, p)
	if p.Failure() {
		_ = v.c.Error(p).SetType(gin.ErrorTypePrivate)
	}
}
