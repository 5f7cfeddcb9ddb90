package main

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// rowsOf returns the rows that ls and top show. The first row is the headings.
func rowsOf(locks []lock) [][]string {
	rows := [][]string{columns}
	for _, l := range locks {
		rows = append(rows, l.cells())
	}
	return rows
}

// widestCell is the largest width of a column. A longer cell, such as a key of 500 bytes, does
// not widen its column, but moves the rest of its row to the right.
const widestCell = 48

// grid aligns the columns of rows. It counts the width of a cell on the screen: a Chinese
// letter is as wide as two Latin letters, and a combining accent has no width.
func grid(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			if n := ansi.StringWidth(cell); n <= widestCell {
				widths[i] = max(widths[i], n)
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", max(widths[i]-ansi.StringWidth(cell), 0)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// shortenKeys shortens the keys, so that a screen of the given width also shows the columns to
// the right of the keys, and at least the beginning of the last column.
func shortenKeys(rows [][]string, width int) {
	const least, ofHolder = 8, 8
	rest := ofHolder
	for column := 1; column < len(columns)-1; column++ {
		widest := 0
		for _, row := range rows {
			widest = max(widest, ansi.StringWidth(row[column]))
		}
		rest += widest + 2
	}
	room := max(width-rest-2, least)
	for _, row := range rows {
		row[0] = ansi.Truncate(row[0], room, "…")
	}
}
