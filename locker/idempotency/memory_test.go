package idempotency_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker/idempotency"
)

func TestAnExpiredAnswerGivesWayToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := idempotency.NewMemory()
		for _, body := range []string{"of yesterday", "of today"} {
			if err := m.Save(t.Context(), "key", record(body), time.Hour); err != nil {
				t.Fatal(err)
			}
			if got, found, err := m.Load(t.Context(), "key"); !found || err != nil || string(got.Response.Body) != body {
				t.Errorf("%q, %v, %v; want the one %s", got.Response.Body, found, err, body)
			}
			<-time.After(time.Hour)
		}
	})
}

func TestMemoryDeletesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := idempotency.NewMemory()
		for i := range 1000 {
			if err := m.Save(t.Context(), fmt.Sprint(i), record("x"), time.Minute); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) //nolint:forbidigo // a bubble: this is how time passes
		}
		if n := m.Len(); n > 130 { // 60 records are valid; the others are removed when the number of records has doubled
			t.Errorf("%d records are kept", n)
		}
		if _, found, err := m.Load(t.Context(), "939"); found || err != nil {
			t.Errorf("found after a minute: %v, %v", found, err)
		}
		if _, found, err := m.Load(t.Context(), "941"); !found || err != nil {
			t.Errorf("found within the minute: %v, %v", found, err)
		}
	})
}

func TestAnOperatorRemovesARecordFromMemory(t *testing.T) {
	m := idempotency.NewMemory()
	if err := m.Save(t.Context(), "a", record("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	m.Remove("a")
	if _, found, err := m.Load(t.Context(), "a"); found || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}
