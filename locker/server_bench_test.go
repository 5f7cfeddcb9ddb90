package locker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// BenchmarkServerSide measures how long the server itself needs for an acquire and its release,
// without the network.
func BenchmarkServerSide(b *testing.B) {
	for name, waiters := range map[string]int{"uncontended": 0, "handed over": 1} {
		b.Run(name, func(b *testing.B) {
			server := redistest.Start(b)
			client := server.Client(b)
			l := newSingle(b, client, locker.WithFair())
			rule := locker.Rule{Key: "bench:server"}
			cycle := func() {
				lease, err := l.Acquire(b.Context(), rule)
				if err != nil {
					b.Error(err)
					return
				}
				if err := lease.Release(b.Context()); err != nil {
					b.Error(err)
				}
			}
			stop, ended := make(chan struct{}), make(chan struct{}, waiters)
			for range waiters {
				go func() {
					defer func() { ended <- struct{}{} }()
					for {
						select {
						case <-stop:
							return
						default:
							cycle()
						}
					}
				}()
			}
			cycle()
			before, pairs := scriptTime(b, client.Info(b.Context(), "commandstats").Val())
			for b.Loop() {
				cycle()
			}
			after, now := scriptTime(b, client.Info(b.Context(), "commandstats").Val())
			close(stop)
			for range waiters {
				<-ended
			}
			b.ReportMetric(float64((after-before).Nanoseconds())/1000/(float64(now-pairs)/2), "server-µs/lock")
		})
	}
}

// scriptTime returns how long all scripts together have run, and how many scripts have run.
func scriptTime(b *testing.B, stats string) (d time.Duration, n int) {
	_, line, _ := strings.Cut(stats, "cmdstat_evalsha:")
	var micros int64
	if _, err := fmt.Sscanf(line, "calls=%d,usec=%d,", &n, &micros); err != nil {
		b.Fatal(err)
	}
	return time.Duration(micros) * time.Microsecond, n
}
