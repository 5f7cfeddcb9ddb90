package foreign

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// madeOf has, for each language, the files from which .ci/install-clients makes the folder with
// the lock library. The folder has a stamp, which depends on these files in this order.
var madeOf = map[string][]string{
	"python": {"requirements.txt"},
	"node":   {"package.json", "package-lock.json"},
	"java":   {"pom.xml", "Client.java"},
}

// installed returns the folder with the lock library of a language. The Makefile must use the
// same path.
func installed(t testing.TB, language string) string {
	t.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	var wanted []byte
	for _, name := range madeOf[language] {
		text, err := os.ReadFile(filepath.Join("testdata", language, name))
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, text...)
	}
	folder := filepath.Join(cache, "latchkit", "clients", language)
	if stamp, err := os.ReadFile(filepath.Join(folder, "made-of")); err != nil || !bytes.Equal(stamp, wanted) {
		t.Fatalf("the lock clients in %s are not installed, or are older than testdata: run `make clients` (it needs python3 "+
			"with pip, node with npm, and javac with mvn, and says how to get them)", folder)
	}
	return folder
}
