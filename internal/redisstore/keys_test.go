package redisstore_test

import (
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/redisstore"
)

func TestSlotsAreThoseOfTheClusterSpecification(t *testing.T) {
	for key, want := range map[string]uint16{
		"123456789": 0x31C3, // the specification's example of CRC16; below 16384, so it is the slot
		"foo":       12182,  // as CLUSTER KEYSLOT foo answers
		"{foo}bar":  12182,
		"x{foo}bar": 12182,
		"foo{}{bar": redisstore.SlotOf("foo{}{bar"),
	} {
		if got := redisstore.SlotOf(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}

func TestCompanionKeysLieInTheirLocksSlot(t *testing.T) {
	for _, key := range []string{"a", "order:42", "{t}x", "x{t}y}z", "a{b", "ключ"} {
		want := redisstore.SlotOf(key)
		for _, companion := range []string{redisstore.CounterKey(key), redisstore.TombstoneKey(key, "TOKEN"), redisstore.DoneKey(key)} {
			if got := redisstore.SlotOf(companion); got != want {
				t.Errorf("%q lies in slot %d, its lock %q in %d", companion, got, key, want)
			}
		}
	}
}

func TestThereIsOneCounterPerSlot(t *testing.T) {
	counters := map[string]bool{}
	for i := range 5 * redisstore.SlotCount {
		counters[redisstore.CounterKey(strings.Repeat("k", i%7)+string(rune('0'+i%75))+string(rune('A'+i/75%300))+string(rune('a'+i/22500)))] = true
	}
	if len(counters) > redisstore.SlotCount {
		t.Fatalf("%d counters", len(counters))
	}
	if got := redisstore.CounterKey("foo"); redisstore.SlotOf(got) != 12182 || !strings.HasPrefix(got, "latchkit:f:{") {
		t.Fatal(got)
	}
}
