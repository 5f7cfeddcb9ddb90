package main

import (
	"fmt"
	"html"
	"os"
	"strconv"
	"strings"
)

const (
	resultsFile = "RESULTS.md"
	plotFile    = "../docs/one-key.svg"
	updateFile  = "../docs/update.svg"
)

// drawing describes the plot of one row of the benchmark. A row is a section of RESULTS.md, such as
// P4. The plot has two bars for each line of this section's table.
type drawing struct {
	file       string
	row        string
	name       []string  // the columns whose cells together are the name of a line in the plot
	bars       [2]string // the columns that the bars show
	captions   [2]string // the texts above the bars
	nameWidth  int       // the width of the space for names
	unmeasured bool      // true: RESULTS.md may lack the row, and then there is no plot
}

var drawings = []drawing{
	{
		file: plotFile, row: "P4", name: []string{"contestant"}, bars: [2]string{"locks/s", "max ms"},
		captions: [2]string{"locks per second (more is better)", "longest wait in ms (less is better)"}, nameWidth: 150,
	},
	{
		file: updateFile, row: "P21", name: []string{"conflicts", "contestant"}, bars: [2]string{"updates/s", "p99 ms"},
		captions: [2]string{"updates per second (more is better)", "99 of 100 take at most, in ms"}, nameWidth: 190, unmeasured: true,
	},
}

// picture is a plot of rows of RESULTS.md.
type picture interface {
	path() string
	isMeasured(results string) bool
	plot(results string) (string, error)
}

var pictures = []picture{drawings[0], drawings[1], latencyPlot{}}

func (d drawing) path() string { return d.file }

// writePlots draws rows of RESULTS.md.
func writePlots() error {
	results, err := os.ReadFile(resultsFile)
	if err != nil {
		return err
	}
	for _, d := range pictures {
		if !d.isMeasured(string(results)) {
			continue
		}
		svg, err := d.plot(string(results))
		if err != nil {
			return fmt.Errorf("%s: %w", resultsFile, err)
		}
		if err := os.WriteFile(d.path(), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// isMeasured reports whether results contain the row of d. If d.unmeasured is false, it returns
// true without looking, and plot returns an error for a missing row.
func (d drawing) isMeasured(results string) bool {
	return !d.unmeasured || strings.Contains(results, "\n## "+d.row+". ")
}

// plot returns the plot of results, the text of RESULTS.md, as an SVG.
func (d drawing) plot(results string) (string, error) {
	title, columns, err := readTable(results, d.row)
	if err != nil {
		return "", err
	}
	contestants := d.names(columns)
	values := [][]string{columns[d.bars[0]], columns[d.bars[1]]}
	if len(contestants) == 0 || len(values[0]) == 0 || len(values[1]) == 0 {
		return "", fmt.Errorf("%s has no columns %s, %s and %s", d.row, strings.Join(d.name, ", "), d.bars[0], d.bars[1])
	}
	const bars, row, top = 250, 30, 74
	left := d.nameWidth
	width := 730 + left
	height := top + row*len(contestants) + 16
	var b strings.Builder
	text := func(x, y int, class, format string, args ...any) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		width, height, html.EscapeString(title))
	b.WriteString("<style>text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold;font-size:15px}" +
		".name{text-anchor:end}.ours{fill:#0a7d5a}.peer{fill:#9aa4af}</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(16, 26, "title", "%s", title)
	text(left, 56, "head", "%s", d.captions[0])
	text(left+bars+110, 56, "head", "%s", d.captions[1])
	for i, name := range contestants {
		y := top + row*i
		class := "peer"
		if strings.Contains(name, "latchkit") {
			class = "ours"
		}
		text(left-10, y+16, "name", "%s", name)
		for j, column := range values {
			value, most := number(column[i]), 0.0
			for _, cell := range column {
				most = max(most, number(cell))
			}
			x := left + j*(bars+110)
			length := max(1, int(value/most*bars))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="20" class="%s"/>`+"\n", x, y, length, class)
			text(x+length+6, y+16, "value", "%.0f", value)
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// names returns a name for each line of a table, made from the cells in the columns d.name.
func (d drawing) names(columns map[string][]string) []string {
	var names []string
	for i := range columns[d.name[0]] {
		var parts []string
		for _, column := range d.name {
			parts = append(parts, columns[column][i])
		}
		names = append(names, strings.Join(parts, ": "))
	}
	return names
}

// readTable returns the first table below the heading of a row in results: the heading, and the
// columns by name.
func readTable(results, row string) (title string, columns map[string][]string, err error) {
	_, below, found := strings.Cut(results, "\n## "+row+". ")
	if !found {
		return "", nil, fmt.Errorf("there is no row %s", row)
	}
	title, below, _ = strings.Cut(below, "\n")
	below, _, _ = strings.Cut(below, "\n## ")
	columns = make(map[string][]string)
	var names []string
	for line := range strings.Lines(below) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case names == nil:
			for _, cell := range cells {
				names = append(names, strings.TrimSpace(cell))
			}
		case strings.HasPrefix(cells[0], "---"):
		case len(cells) != len(names):
			return "", nil, fmt.Errorf("row %s has a line of %d cells under %d headings", row, len(cells), len(names))
		default:
			for i, cell := range cells {
				columns[names[i]] = append(columns[names[i]], strings.TrimSpace(cell))
			}
		}
	}
	return title, columns, nil
}

// number returns the median in a cell such as "702 [701–706]", or 0 if the cell has no median.
func number(cell string) float64 {
	median, _, _ := strings.Cut(cell, " ")
	value, err := strconv.ParseFloat(median, 64)
	if err != nil {
		return 0
	}
	return value
}
