// Package doors tests that nil arguments are refused where they are given.
package doors
