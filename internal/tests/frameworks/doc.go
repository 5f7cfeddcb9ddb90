// Package frameworks runs the lines that docs/adapters.md shows for routers that have no package of
// their own.
package frameworks
