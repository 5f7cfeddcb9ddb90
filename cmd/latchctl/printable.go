package main

import (
	"strconv"
	"strings"
	"time"
	"unicode"
)

// printable escapes the control characters in a text that other programs have written, such as a
// key or the metadata of a holder. Without the escapes, such a text could, for example, clear
// the terminal's screen.
func printable(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// span formats a duration with three significant digits.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
