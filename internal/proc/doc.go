// Package proc gives tests child processes. A test can pause, resume and kill a process, but not a
// goroutine. For example, a test can pause a holder for longer than its TTL, or kill a holder.
//
// A child is the test binary itself, started again with a registered main instead of the tests.
// Parent and child exchange lines. The parent awaits lines of the child with [Child.Expect]. The
// parent sends lines with [Child.Send]. The child reads them with [Listen].
//
//	var holder = proc.Register("holder", func(args []string) {
//		// … take the lease args[0] …
//		fmt.Println("held")
//		proc.Listen() // until the parent says something, or is gone
//	})
//
//	func TestMain(m *testing.M) { os.Exit(proc.Main(m).Run()) }
//
//	func TestPausedHolder(t *testing.T) {
//		child := holder.Start(t, "some-key")
//		child.Expect(t, "held")
//		child.Pause()
//		// …
//	}
//
// [Launch] starts programs other than the test binary. When a test ends, all its children are
// killed.
package proc
