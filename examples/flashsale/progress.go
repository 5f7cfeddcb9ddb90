package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A bar shows on a terminal how many buyers have their answer. On other outputs it shows nothing.
type bar struct{ out io.Writer }

func newBar(out io.Writer) *bar {
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &bar{f}
		}
	}
	return &bar{io.Discard}
}

// show draws the bar until the caller calls stop, which removes the bar. The parameter
// buyersDone counts the buyers that have their answer, total is the number of all buyers, and
// name is the text before the bar.
func (b *bar) show(name string, total int, buyersDone *atomic.Int64) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			b.draw(name, int(buyersDone.Load()), total)
			select {
			case <-ticker.C:
			case <-quit:
				fmt.Fprint(b.out, "\r"+strings.Repeat(" ", 70)+"\r")
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}

func (b *bar) draw(name string, buyersDone, total int) {
	const width = 30
	full := width * buyersDone / total
	fmt.Fprintf(b.out, "\r%-12s %s%s %d/%d buyers", name, strings.Repeat("█", full), strings.Repeat("░", width-full), buyersDone, total)
}
