// Package storetest checks that a Store obeys the laws that package locker relies on.
//
// Hand a [Harness] for your Store to [Run]. Each law is a subtest whose name is a sentence. A law
// that needs something which the Harness does not offer is left out, and the log of the test says
// so.
//
//	func TestMyStoreObeysTheLaws(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness {
//			return storetest.Harness{Store: newStore(t), Can: storetest.All}
//		})
//	}
package storetest
