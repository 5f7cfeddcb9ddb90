// Package storetest checks that a Store obeys the laws that package locker relies on.
//
// Give a [Harness] for a Store to [Run]. Each law is a subtest whose name is a sentence. If a
// law needs a function that the Harness does not have, the law is left out, and the test's log
// shows that.
//
//	func TestStoreObeysTheLaws(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness {
//			return storetest.Harness{Store: newStore(t), Can: storetest.All}
//		})
//	}
package storetest
