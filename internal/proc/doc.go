// Package proc gives a test child processes, to be stopped, resumed and killed
// as no goroutine can be: the holder of a lease that the kernel pauses past its
// TTL, or the one that dies without a word.
//
// A child is the test binary itself, started once more and led into a
// registered main instead of the tests. Parent and child talk in lines: what
// the child prints, the parent awaits with [Child.Expect]; what the parent says
// with [Child.Send], the child reads with [Listen].
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
// Programs other than the test binary are started with [Launch]. Whatever a
// test does, its children are gone when it ends.
package proc
