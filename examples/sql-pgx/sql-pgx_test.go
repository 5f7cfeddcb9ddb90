package main

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/latchkit/latchkit/internal/sqltest"
)

func TestTheExampleRuns(t *testing.T) {
	dsn, url := sqltest.Start(t, sqltest.Postgres).DSN("postgres"), "redis://"+miniredis.RunT(t).Addr()
	for range 2 { // at the second run the tables exist already
		if err := run(t.Context(), dsn, url); err != nil {
			t.Fatal(err)
		}
	}
}
