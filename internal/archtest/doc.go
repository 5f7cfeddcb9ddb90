// Package archtest has tests for the rules that no compiler and no linter checks. Most rules are
// rows of a table. Each row has a reason. The message for a broken rule describes how to follow the
// rule.
//
//   - imports_test.go: which package may import what
//   - modules_test.go: what a user's go.sum gets, and how the modules refer to each other
//   - api_test.go: the exported API, as text files below api
//   - readme_test.go, links_test.go: the documents' code, links, tests and indexes
//   - lua_test.go: what a script's header promises, and which commands a user's ACL must allow
//   - hygiene_test.go: no unfinished work, and no names that say nothing
//
// Each checker is a function of a tree of files. So the test of a checker can pass a broken tree,
// and show that the checker finds the fault.
package archtest
