package main

import (
	"strings"
	"unicode"
)

// rowsOf returns the rows that ls shows. The first row is the headings.
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
			if n := width(cell); n <= widestCell {
				widths[i] = max(widths[i], n)
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", max(widths[i]-width(cell), 0)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// width is the number of columns that text takes on a screen.
func width(text string) (n int) {
	for _, r := range text {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana, wide):
			n += 2
		default:
			n++
		}
	}
	return n
}

// wide has the signs beside the letters of East Asia, their wide forms of Latin, and pictures.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x3000, Hi: 0x303e, Stride: 1}, {Lo: 0xff01, Hi: 0xff60, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x1f300, Hi: 0x1faff, Stride: 1}},
}
