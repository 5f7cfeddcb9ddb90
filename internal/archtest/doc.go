// Package archtest holds the rules that no compiler and no linter knows, as tests. A rule is a row
// of a table, from the thing to the reason. The message for a broken rule says what to do, and a
// missing row is added together with its reason.
//
//   - imports_test.go: which package may import what
//   - modules_test.go: what a user's go.sum gets, and how the modules hang together
//   - api_test.go: the exported API, as text files below api
//   - readme_test.go, links_test.go: the documents' code, links, tests and indexes
//   - lua_test.go: what a script's header promises, and which commands a user's ACL must allow
//   - columns_test.go: prose of at most 100 columns
//   - hygiene_test.go: nothing left behind, no name that fits everything
//
// Each checker is a function over a tree of files, so that its test can give it a broken tree: a
// check that cannot fail checks nothing.
package archtest
