package locker_test

import (
	"strings"
	"testing"

	"github.com/latchkit/latchkit/locker"
)

func TestSlotsAreThoseOfTheClusterSpecification(t *testing.T) {
	for key, want := range map[string]uint16{
		"123456789": 0x31C3, // the specification's own check value, below 16384
		"foo":       12182,  // CLUSTER KEYSLOT foo
		"{foo}bar":  12182,
		"x{foo}bar": 12182,
		"foo{}{bar": locker.SlotOf("foo{}{bar"),
	} {
		if got := locker.SlotOf(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}

func TestCompanionKeysLieInTheirLocksSlot(t *testing.T) {
	for _, key := range []string{"a", "order:42", "{t}x", "x{t}y}z", "a{b", "ключ"} {
		want := locker.SlotOf(key)
		for _, companion := range []string{locker.CounterOf(key), locker.Tombstone(key, "TOKEN"), locker.DoneMark(key)} {
			if got := locker.SlotOf(companion); got != want {
				t.Errorf("%q lies in slot %d, its lock %q in %d", companion, got, key, want)
			}
		}
	}
}

func TestThereIsOneCounterPerSlot(t *testing.T) {
	counters := map[string]bool{}
	for i := range 5 * locker.SlotCount {
		counters[locker.CounterOf(strings.Repeat("k", i%7)+string(rune('0'+i%75))+string(rune('A'+i/75%300))+string(rune('a'+i/22500)))] = true
	}
	if len(counters) > locker.SlotCount {
		t.Fatalf("%d counters", len(counters))
	}
	if got := locker.CounterOf("foo"); locker.SlotOf(got) != 12182 || !strings.HasPrefix(got, "latchkit:f:{") {
		t.Fatal(got)
	}
}
