// Package archtest holds the rules that no compiler knows, as tests. A rule is
// a row of a map, from the thing to the reason; whoever breaks one is told what
// to do, and a row that is missing is added together with its reason.
//
//   - imports_test.go: which package may import what
//   - names_test.go: names of directories and files that say nothing
//   - modules_test.go: what a user's go.sum gets, and how the modules hang together
//   - api_test.go: the exported API, as text files below api
//   - readme_test.go, links_test.go: the documents' code and links
//   - lua_test.go: what a script's header promises, against its body and its callers
//   - comments_test.go: everything exported is explained
//   - hygiene_test.go: nothing left behind, nothing skipped
//   - reasons_test.go: every row of these rules says why
//
// Each checker is a function over a tree of files, so that a broken tree can be
// given to it: a check that cannot fail checks nothing.
package archtest
