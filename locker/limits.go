package locker

import "time"

// The engine's times and limits. Those of the calls to a server are in package link.
const (
	// unansweredFor is how long an acquire is repeated while the server has not yet answered whether
	// the key is held. A Store that may hang is given lateBy more, of the 250 ms by which a caller
	// may be late.
	unansweredFor = time.Second
	lateBy        = 150 * time.Millisecond
	// releaseWithin is the longest time for which Release and Complete wait for the server's answer.
	releaseWithin = 2 * time.Second
	// closeWaitsForAnswers is how long Close waits for answers of the server if its ctx has no
	// deadline.
	closeWaitsForAnswers = 5 * time.Second
	// shortestPause keeps a Backoff of zeros from asking the server without a break.
	shortestPause = time.Millisecond

	// A waiter in the queue asks again from time to time, in case a message was lost or a holder
	// died. The head of the queue asks after headAsks, and then after twice the last pause, up to
	// half of its TTL. No waiter is silent for longer than othersAsk.
	headAsks, othersAsk = time.Second, 10 * time.Second
	// A lease that the server has granted by message lasts for at most longestHand until the winner
	// renews it. So a winner that is paused or cut off costs the others no more.
	longestHand = 2 * time.Second
	// freshGrant is the largest age at which a grant by message is used. An older one means that the
	// process was paused, the message was late or a clock stepped: then the waiter asks the server.
	freshGrant = 100 * time.Millisecond

	// longestStreak is the largest number of callers in a streak. It saves most of the calls of a
	// hand-off, and reserves as many fences.
	longestStreak = 64
	// streakWithin is the time after which no streak continues. This limit shortens the wait of
	// other processes when the work under each lock is long.
	streakWithin = 10 * time.Millisecond

	// renewSlack: holds that are due within this time are renewed in the same batch.
	renewSlack = 5 * time.Millisecond
	// mostUnanswered is the largest number of unanswered renewals of one hold. Without this limit,
	// renewals would pile up when the Store hangs.
	mostUnanswered = 8
	// unnotifiedRenewals is the longest time between two renewals if the readers cannot receive
	// messages about a waiting writer.
	unnotifiedRenewals = time.Second
	// notifiedRenewals is the longest time between two renewals of other readers. Without renewals,
	// the subscription would count as unused, and end.
	notifiedRenewals = 30 * time.Second
	// sharedBy is about how many renewals come due together where a process has very many holds.
	sharedBy = 64
	// slotBits is the number of bits of the length of a slot in the schedule: 2^24 ns.
	slotBits = 24
	// looksForSuspension is how often the clocks are compared while there are holds. The machine
	// counts as suspended if the wall clock gains at least suspendedFor between two looks: a clock
	// that is adjusted slowly gains less than a millisecond.
	looksForSuspension = time.Second
	suspendedFor       = 500 * time.Millisecond
	// answerAfterSuspension is the longest wait for the answer to a renewal after a suspension that
	// may have been as long as the rest of the lease.
	answerAfterSuspension = time.Second

	// maxRetryAfter is the largest estimate of [Error.RetryAfter], without its jitter, and firstGuess
	// the least time for which a holder is assumed to have held the key.
	maxRetryAfter = 2 * time.Second
	firstGuess    = 50 * time.Millisecond
	// An estimate of how long leases of a Name are held uses about the last rememberWell leases.
	// Further Names than mostNames are not remembered: a Name has few values.
	rememberWell, mostNames = 16, 1024
	// An adaptive TTL is the delay of renewals times ttlFactor. A smaller delay lowers the known one
	// by 1/fallDivisor of the difference.
	ttlFactor, fallDivisor = 10, 16
)
