package main

import (
	"embed"
	"path"
	"slices"
	"strings"
)

// The page shows lines of this program beside the figures of each mode. They come from the files
// that are compiled, so they cannot be out of date.
//
//go:embed actor.go locks.go shop.go scene_*.go sql
var source embed.FS

// excerpt returns the lines of each place, and the names of the files. A place is an SQL file, or
// a Go file with the name of a region: "actor.go#run". In the Go file, a comment //show:run begins
// the region, and //show:end ends it.
func excerpt(places ...string) (code, from string) {
	var parts, files []string
	for _, place := range places {
		file, region, _ := strings.Cut(place, "#")
		text, err := source.ReadFile(file)
		if err != nil {
			panic(err) // a typing error in this program
		}
		var lines []string
		shown := region == ""
		for line := range strings.Lines(string(text)) {
			switch mark, isMark := strings.CutPrefix(strings.TrimSpace(line), "//show:"); {
			case isMark:
				shown = mark == region
			case shown && !strings.HasPrefix(line, "--"):
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 {
			panic("nothing is shown of " + place)
		}
		indent := len(lines[0]) - len(strings.TrimLeft(lines[0], "\t"))
		for i, line := range lines {
			lines[i] = line[min(indent, len(line)-len(strings.TrimLeft(line, "\t"))):]
		}
		parts = append(parts, strings.TrimSpace(strings.Join(lines, "")))
		if name := path.Base(file); !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	return strings.Join(parts, "\n…\n"), strings.Join(files, ", ")
}
