package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// table is the results in Markdown: the median of all turns, and their range.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| uncontended acquire + release, 1 goroutine | µs | × floor | allocs | fence |\n")
	b.WriteString("|---|---|---|---|---|\n")
	floor := results[0]
	for _, r := range results {
		var micros, ratios []float64
		for turn, perOp := range r.perOp {
			micros = append(micros, float64(perOp)/float64(time.Microsecond))
			ratios = append(ratios, float64(perOp)/float64(floor.perOp[turn]))
		}
		fence := "no"
		if r.fence {
			fence = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.0f | %s |\n",
			r.name, spread("%.1f", micros), spread("%.2f", ratios), median(r.allocs), fence)
	}
	return b.String()
}

// spread is the median, and the range in brackets.
func spread(format string, samples []float64) string {
	return fmt.Sprintf(format+" ["+format+"–"+format+"]", median(samples), slices.Min(samples), slices.Max(samples))
}

func median[T cmp.Ordered](samples []T) T {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}

// about says where and how it was measured: figures without that are hearsay.
func about(ctx context.Context, addr string, rounds int, turn time.Duration) string {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	version := client.InfoMap(ctx, "server").Item("Server", "redis_version")
	return fmt.Sprintf("%s, redis %s, go-redis %s, %s/%s, GOMAXPROCS %d, %d rounds of %v each.",
		runtime.Version(), cmp.Or(version, "of unknown version"), redis.Version(),
		runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), rounds, turn)
}
