package main

import "fmt"

// none returns an error if an event that must not happen, such as a violation, happened in any turn.
// The function count returns how many such events a turn had.
func none[T any](event string, turns []T, count func(T) float64) error {
	var sum float64
	for _, n := range figuresOf(turns, count) {
		sum += n
	}
	if sum != 0 {
		return fmt.Errorf("%s: %.0f", event, sum)
	}
	return nil
}
