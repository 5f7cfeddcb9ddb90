package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// promises names the tests of the sentences with a strong word in docs/guarantees.md, in README.md,
// and in the comments of the exported names of package locker. A sentence of a document may link to
// its test instead. words is a part of the sentence, with one space between the words.
var promises = []struct{ words, tests string }{
	{"So every grant has a *fence*", "TestFencesGrowAlsoWhenTheServerForgets"},
	{"the process asks the server at once", "TestALeaseThatASuspendedMachineLostEndsSoonAfterItWakes"},
	{"all leases are renewed at once, and a lease that is never renewed", "TestAClockThatIsSetForwardCostsNoLease TestALeaseThatIsNotRenewedEndsByTheWallClock"},
	{"A lease that is never renewed ends earlier", "TestALeaseThatIsNotRenewedEndsByTheWallClock"},

	{"RaiseFence never lowers the fence", "TestInspectBreakAndRaiseFence"},
	{"Every grant carries a fence", "TestFencesGrowAlsoWhenTheServerForgets"},
	{"ends the contexts of the leases at once, and the Drain", "TestCloseEndsADrain"},
	{"at once, except for a call that runs on this goroutine", "TestAHangingCallDoesNotHoldUpItsCaller"},
	{"An error that is ErrUnavailable is never also ErrBusy", "TestARecheckThatHangsIsNotBusy"},
	{"An Error never contains an owner's token", "TestTokensStayOutOfErrors"},
	{"It never shows the owner's token", "TestTokensStayOutOfErrors"},
	{"prints the result of String for every verb", "TestTokensStayOutOfErrors"},
	{"Fence returns a number that grows with every grant", "TestALeaseIsPassedOnWithoutACall"},
	{"the release frees the key at once", "TestAReleaseWakesAWaiterAtOnce"},
	{"With EndAfter = TTL the lease is never renewed", "TestAtMostEndsALease"},
	{"A lease with Metadata is never shared", "TestOnlyEqualTermsShare"},
	{"can never grant rule", "TestCheckFindsRulesThatCanNeverBeGranted"},
	{"tries to become a writer is refused at once", "TestAnUpgradeIsRefusedAtOnce"},
	{"permits are granted strictly in the order of the queue", "TestWithFairLighterWaitersDoNotOvertakeAHeavyOne"},
	{"Such a node does not vote until every lease that it may have forgotten is over", "TestQuorumQ1AWaitIsAsLongAsAnybodysLongestLease"},
	{"The fence grows with every grant, whatever the nodes' clocks", "TestTheRulesKeepFencesUniqueAndLeasesApart"},
	{"so that it never touches the lease of another holder", "TestAStepNeverHitsAHolderThatCameBetween"},
	{"puts p in front of every key", "TestThePrefixIsTheStoresAndTheKeyTheCallers"},
	{"notifies o of every operation", "TestTheObserverHearsEveryOutcome"},
	{"but never longer than most", "TestBackoffs"},
	{"So n replicas know every lease that a holder relies on", "TestAGrantCountsWhenReplicasHaveAcknowledgedIt"},
	{"is still valid at that moment by this process's clock", "TestBackgroundReleaseReportsALossThatTheClockShows"},
	{"Callers of the same process see the key as free at once", "TestBackgroundReleaseLeavesTheKeyFreeForItsOwnProcess"},
	{"Direct calls of Release and Complete are always awaited", "TestBackgroundReleaseIsAwaitedWhereItsAnswerCounts"},
	{"every release is awaited", "TestBackgroundReleaseIsAwaitedWhereItsAnswerCounts"},
	{"latchkit gives up every call after one second", "TestEveryCallIsBackInTimeWhileItsNodeHangs"},
	{"gets a Lease with the holder's fence at once", "TestANestedAcquireJoinsWithoutACall"},
	{"with such a context never takes a new lease silently", "TestAfterALossNobodyBeginsAnew"},
	{"inside a Shared hold is refused at once", "TestExclusiveInsideSharedIsRefusedAtOnce"},
	{"Without rules, RunAll calls fn at once", "TestRunAllOfNothingRuns"},
	{"RunAll never waits for itself", "TestRunAllDoesNotWaitForItself"},
	{"Each key always has the same stripe", "TestTheStripeOfAKeyIsFixed"},
}

// noPromises lists sentences with a strong word that promise nothing about latchkit.
var noPromises = []string{
	"every router that takes a", // a type
	"polling every 100 ms",      // a setting of the benchmark
	"Pollers that ask every millisecond",
	"[Every fault]", // a link to all of them
	"All at once",   // the name of a column
	"all at once",
	"forward, at once", // how a clock is set
}

var (
	strongWord = regexp.MustCompile(`(?i)\b(strictly|every|always|never|at once|at that moment|exactly)\b`)
	// sentenceEnd finds the ends of sentences and of cells.
	sentenceEnd = regexp.MustCompile(`[.:;]\s+|\n\s*\n|\|`)
	testTitle   = regexp.MustCompile(`\]\([^)]*_test\.go "Test\w+"\)`)
)

// checkPromises checks that each sentence with a strong word names its test, so that no sentence is
// stronger than what is tested. Sentences that need no test are in noPromises, or use weaker words.
func checkPromises(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	used := make(map[string]bool)
	for where, text := range strongTexts(t, tree) {
		for _, sentence := range sentenceEnd.Split(text, -1) {
			sentence = strings.Join(strings.Fields(sentence), " ")
			if strongWord.MatchString(linkTarget.ReplaceAllString(sentence, "]")) && !testTitle.MatchString(sentence) && !isPromised(sentence, used) {
				problems = append(problems, fmt.Sprintf("%s: %q has a strong word: link to the test of the sentence, "+
					"add a row to the table of promises, or weaken the sentence", where, sentence))
			}
		}
	}
	tests := make(map[string]bool)
	for _, name := range find(t, tree, "*_test.go") {
		for _, m := range testFunction.FindAllStringSubmatch(read(t, tree, name), -1) {
			tests[m[1]] = true
		}
	}
	for _, p := range promises {
		if !used[p.words] {
			problems = append(problems, fmt.Sprintf("the table of promises: no sentence has the words %q: remove the row", p.words))
		}
		for test := range strings.FieldsSeq(p.tests) {
			if !tests[test] {
				problems = append(problems, fmt.Sprintf("the table of promises: there is no test %s, for %q", test, p.words))
			}
		}
	}
	return problems
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// isPromised reports whether one of the tables has the sentence, and marks its rows as used.
func isPromised(sentence string, used map[string]bool) (found bool) {
	for _, p := range promises {
		if strings.Contains(sentence, p.words) {
			used[p.words], found = true, true
		}
	}
	for _, words := range noPromises {
		found = found || strings.Contains(sentence, words)
	}
	return found
}

// strongTexts returns the texts whose sentences must name their tests, by the place of the text.
func strongTexts(t testing.TB, tree fs.FS) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, name := range find(t, tree, "*.md") {
		if name == "README.md" || name == "docs/guarantees.md" {
			texts[name] = inlineCode.ReplaceAllString(fenced.ReplaceAllString(read(t, tree, name), ""), "")
		}
	}
	set := token.NewFileSet()
	for _, name := range find(t, tree, "*.go") {
		if path.Dir(name) != "locker" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, read(t, tree, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		add := func(doc *ast.CommentGroup) {
			if doc != nil {
				texts[set.Position(doc.Pos()).String()] = doc.Text()
			}
		}
		add(file.Doc)
		for _, d := range file.Decls {
			eachExportedDoc(d, add)
		}
	}
	return texts
}

// eachExportedDoc calls add with the comments of the exported names that d declares: of functions,
// types, fields, constants and variables.
func eachExportedDoc(d ast.Decl, add func(*ast.CommentGroup)) {
	if f, ok := d.(*ast.FuncDecl); ok {
		if f.Name.IsExported() && (f.Recv == nil || ast.IsExported(receiver(f))) {
			add(f.Doc)
		}
		return
	}
	block := d.(*ast.GenDecl)
	for _, spec := range block.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			add(block.Doc)
			ast.Inspect(s, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok && (len(field.Names) == 0 || field.Names[0].IsExported()) {
					add(field.Doc)
					add(field.Comment)
				}
				return true
			})
			add(s.Doc)
		case *ast.ValueSpec:
			if s.Names[0].IsExported() {
				add(block.Doc)
				add(s.Doc)
				add(s.Comment)
			}
		}
	}
}

func TestPromisesRefused(t *testing.T) {
	t.Parallel()
	problems := checkPromises(t, treeOf(map[string]string{
		"README.md":          "It never fails. It [never lies](locker/a_test.go \"TestA\"). At times it is late: `never` is code.\n",
		"docs/guarantees.md": "| ● | exactly once |\n",
		"docs/other.md":      "It always works.\n",
		"locker/a.go": "// Package locker is always there.\npackage locker\n\n// A is strictly first.\ntype A struct {\n\t// B is\n\t// at\n\t// once set.\n\tB int\n" +
			"\tc int // never\n}\n\n// d always works.\nfunc d() {}\n",
		"locker/a_test.go": "package locker\n\nfunc TestA(t *testing.T) {}\n",
	}))
	var strong []string
	for _, p := range problems {
		if !strings.HasPrefix(p, "the table of promises") {
			strong = append(strong, p)
		}
	}
	expect(t, strong,
		`README.md: "It never fails" has a strong word`,
		`docs/guarantees.md: "exactly once" has a strong word`,
		`locker/a.go:1:1: "Package locker is always there" has a strong word`,
		`locker/a.go:4:1: "A is strictly first" has a strong word`,
		`locker/a.go:6:2: "B is at once set" has a strong word`,
	)
	if len(problems) == len(strong) {
		t.Error("rows of the table without a sentence, and without a test, are not refused")
	}
}
