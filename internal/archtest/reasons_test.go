package archtest

import (
	"maps"
	"slices"
	"testing"
)

// TestReasons wants a reason in every row: a rule that nobody can argue with is one that nobody can change.
func TestReasons(t *testing.T) {
	t.Parallel()
	tables := map[string]map[string]string{
		"because": because, "luaForbidden": luaForbidden, "luaRedis": luaRedis, "mayRequire": mayRequire, "maySkip": maySkip,
		"notInWorkspace": notInWorkspace, "reserved": reserved, "saysNothing": saysNothing, "selfEvident": selfEvident,
	}
	for dir, row := range mayImport {
		tables["mayImport of "+dir] = row
	}
	for _, o := range onlyIn {
		tables["onlyIn for "+o.imports] = o.files
	}
	commands := make(map[string]string)
	for name, c := range luaCommands {
		commands[name] = c.why
	}
	tables["luaCommands"] = commands

	for _, name := range slices.Sorted(maps.Keys(tables)) {
		for _, row := range slices.Sorted(maps.Keys(tables[name])) {
			if tables[name][row] == "" {
				t.Errorf("%s: the row %s has no reason: say why, for whoever wants to change it", name, row)
			}
		}
	}
}
