package locker

import (
	"log/slog"
	"runtime/debug"
)

// absorb is deferred around each call of an Observer. A panic of the Observer is logged, and the
// operation continues. Without absorb, the panic could end an Acquire that has just got a lease,
// and the Engine would renew this lease although it has no holder. On a goroutine of the Engine,
// the panic would end the process.
func absorb(method string) {
	if p := recover(); p != nil {
		slog.Error("latchkit: the Observer panicked; the operation continues",
			"method", method, "panic", p, "stack", string(debug.Stack()))
	}
}
