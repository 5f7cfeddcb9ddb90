package otellock_test

import (
	"log"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	sdklog "go.opentelemetry.io/otel/sdk/log"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// Losses, renewals that fail or are late, and nodes that are out become log records of
// OpenTelemetry.
func Example_logRecords() {
	records := sdklog.NewLoggerProvider() // in production with an exporter, as for traces
	logger := otelslog.NewLogger("orders", otelslog.WithLoggerProvider(records))
	observer, err := otellock.New(otellock.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	_ = locker.WithObserver(observer)
}
