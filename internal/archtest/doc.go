// Package archtest holds the rules that no compiler knows, as tests. A rule is
// a row of a map, from the thing to the reason; whoever breaks one is told what
// to do, and a row that is missing is added together with its reason.
//
//   - imports_test.go: which package may import what
//   - modules_test.go: what a user's go.sum gets, and how the modules hang together
//   - api_test.go: the exported API, as text files below api
//   - readme_test.go, links_test.go: the documents' code and links
//   - lua_test.go: what a script's header promises, and which commands a user's ACL must allow
//   - columns_test.go: prose of at most 100 columns
//   - hygiene_test.go: nothing left behind, nothing skipped, no name that fits everything
//
// Each checker is a function over a tree of files, so that a broken tree can be
// given to it: a check that cannot fail checks nothing.
package archtest
