package archtest

import (
	"maps"
	"slices"
	"testing"
)

// TestReasons wants a reason in every row: a rule that nobody can argue with is one that nobody can
// change.
func TestReasons(t *testing.T) {
	t.Parallel()
	tables := map[string]map[string]string{
		"because": because, "luaCommands": luaCommands, "luaForbidden": luaForbidden, "luaTried": luaTried,
		"mayRequire": mayRequire, "notInWorkspace": notInWorkspace, "reserved": reserved,
		"wide": wide,
	}
	for dir, row := range mayImport {
		tables["mayImport of "+dir] = row
	}
	for _, o := range onlyIn {
		tables["onlyIn for "+o.imports] = o.files
	}

	for _, name := range slices.Sorted(maps.Keys(tables)) {
		for _, row := range slices.Sorted(maps.Keys(tables[name])) {
			if tables[name][row] == "" {
				t.Errorf("%s: the row %s has no reason: say why, for whoever wants to change it", name, row)
			}
		}
	}
}
