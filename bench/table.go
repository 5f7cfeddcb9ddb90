package main

import (
	"fmt"
	"strings"
)

// table is a table that is written as Markdown.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) table { return table{head: head} }

func (t *table) add(cells ...string) {
	if len(cells) != len(t.head) {
		panic(fmt.Sprintf("%d cells below %d headings: %q", len(cells), len(t.head), cells))
	}
	t.rows = append(t.rows, cells)
}

// String returns the table as Markdown, with numbers aligned on the right.
func (t table) String() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	b.WriteString("|---|" + strings.Repeat("---:|", len(t.head)-1) + "\n")
	for _, cells := range t.rows {
		line(cells)
	}
	return b.String()
}

// medianText returns the median of samples as text, without the range. Use it for figures that
// hardly differ between turns.
func medianText(format string, samples []float64) string {
	return figure(format, median(samples))
}

// sumText returns the sum of samples as text. Use it for counts.
func sumText(samples []float64) string {
	var sum float64
	for _, s := range samples {
		sum += s
	}
	return fmt.Sprintf("%.0f", sum)
}
