package locktest

import (
	"crypto/sha1"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// SHA returns the SHA-1 under which a server knows the script with the given text.
func SHA(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// CheckDigests fails the test unless the file has the SHA-1 of each of the texts, by name, and
// nothing else. If the environment has LATCHKIT_DIGESTS=write, CheckDigests writes the file.
func CheckDigests(t *testing.T, file string, texts map[string]string) {
	t.Helper()
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		want.WriteString(SHA(texts[name]) + "  " + name + "\n")
	}
	if os.Getenv("LATCHKIT_DIGESTS") == "write" {
		if err := os.WriteFile(file, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want.String() {
		t.Errorf("%s has not the digests of the scripts: run make generate; it has\n%swant\n%s", file, have, want.String())
	}
}
