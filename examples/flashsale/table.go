package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const row = "%-12s  %5s  %8s  %8s  %7s  %7s  %9s  %9s  %8s\n"

func printHead(w io.Writer, s *sale) {
	fmt.Fprintf(w, "%v\n\n", s)
	fmt.Fprintf(w, row, "", "sold", "oversold", "sold out", "gave up", "refused", "p50 wait", "p99 wait", "duration")
}

func printRow(w io.Writer, r result) {
	n := strconv.Itoa
	fmt.Fprintf(w, row, r.way, n(r.sold), n(r.oversold), n(r.soldOut), n(r.gaveUp), n(r.refused),
		millis(r.p50), millis(r.p99), fmt.Sprintf("%.1f s", r.took.Seconds()))
}

// printFoot explains the columns, and prints a summary of the table.
func printFoot(w io.Writer, s *sale, results []result) {
	fmt.Fprintf(w, `
  sold      orders in the database
  oversold  orders beyond the stock of %d
  sold out  buyers who found no item left
  gave up   buyers who were refused %d times
  refused   answers 409 with Retry-After; the buyer comes back later
  wait      from a buyer's first click to the last answer

`, s.items, tries)
	for _, r := range results {
		if len(r.failed) > 0 {
			fmt.Fprintf(w, "%s: %d requests failed, the first with: %v\n", r.way, len(r.failed), r.failed[0])
		}
	}
	fmt.Fprintln(w, verdict(s, results))
}

// verdict describes each result in one line.
func verdict(s *sale, results []result) string {
	none, naive, ours := results[0], results[1], results[2]
	stock := min(s.items, s.buyers)
	var first, second, third string
	if none.oversold > 0 {
		first = fmt.Sprintf("Without a lock the shop sold %d items out of a stock of %d", none.sold, s.items)
	} else {
		first = "Without a lock the shop oversold nothing this time: too few buyers met"
	}
	if naive.oversold > 0 {
		second = fmt.Sprintf("SETNX + DEL oversold %d: the lock expired during slow payments", naive.oversold)
	} else {
		second = "SETNX + DEL oversold nothing this time"
	}
	if ours.sold == stock {
		third = fmt.Sprintf("latchkit, with the same TTL, sold exactly %d", stock)
	} else {
		third = fmt.Sprintf("latchkit sold %d instead of %d", ours.sold, stock)
	}
	return first + ";\n" + second + ";\n" + third + "."
}

func millis(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
}

// printTrace prints the spans of a request as a tree, each with its share of the request's time.
func printTrace(w io.Writer, request *node) {
	if request == nil {
		fmt.Fprintln(w, "\nNo purchase waited for the lock, so there is no trace to show; try more -buyers.")
		return
	}
	fmt.Fprintf(w, "\nThe slowest purchase of the latchkit sale:\n\n")
	printNode(w, request, request, "", "")
	fmt.Fprintf(w, "\nOf %s it waited %s for the lock.\n", millis(request.Took), millis(request.lockWait()))
}

// printNode prints the span n and the spans inside n, each with its share of the time of the
// span request. The line of n begins with the prefix first, and the lines below it begin with
// the prefix rest.
func printNode(w io.Writer, n, request *node, first, rest string) {
	const nameWidth, barWidth = 28, 30
	name := first + n.Name
	pad := strings.Repeat(" ", max(0, nameWidth-utf8.RuneCountInString(name)))
	scale := func(d time.Duration) int { return int(d * barWidth / max(request.Took, 1)) }
	from := min(scale(n.Start.Sub(request.Start)), barWidth-1)
	to := min(max(scale(n.Start.Sub(request.Start)+n.Took), from+1), barWidth)
	bar := strings.Repeat("·", from) + strings.Repeat("█", to-from) + strings.Repeat("·", barWidth-to)
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%s%s %9s  %s  %s", name, pad, millis(n.Took), bar, n.resultNote()), " "))
	for i, inside := range n.Inside {
		if i == len(n.Inside)-1 {
			printNode(w, inside, request, rest+"└─ ", rest+"   ")
		} else {
			printNode(w, inside, request, rest+"├─ ", rest+"│  ")
		}
	}
}
