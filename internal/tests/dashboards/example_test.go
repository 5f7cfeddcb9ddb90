package dashboards_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// A program without OpenTelemetry shows its locks to Prometheus.
func Example_prometheus() {
	exporter, err := prometheus.New() // go.opentelemetry.io/otel/exporters/prometheus
	if err != nil {
		log.Fatal(err)
	}
	observer, err := otellock.New(otellock.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))))
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("GET /metrics", promhttp.Handler())

	l, err := lockertest.NewMemory().NewLocker(locker.WithObserver(observer)) // in a service: Open
	if err != nil {
		log.Fatal(err)
	}
	if err := locker.Run(context.Background(), l, locker.Rule{Key: "order:42"}, func(context.Context) error { return nil }); err != nil {
		log.Fatal(err)
	}
	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for lines := bufio.NewScanner(w.Body); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "# TYPE latchkit"); ok {
			fmt.Println("latchkit" + name)
		}
	}
	// Output:
	// latchkit_lock_acquire_duration_seconds histogram
	// latchkit_lock_held_active gauge
	// latchkit_lock_hold_duration_seconds histogram
	// latchkit_lock_release_duration_seconds histogram
}
