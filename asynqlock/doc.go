// Package asynqlock guards asynq tasks with locks, so that a job runs once at a time, and if you wish once at all.
//
//	g, err := asynqlock.New(l,
//		asynqlock.On("email:welcome", asynqlock.Key(func(p Welcome) string { return "user:" + p.UserID }),
//			asynqlock.Once(24*time.Hour), asynqlock.Drop()),
//		asynqlock.On("report:*", asynqlock.Template("report:{payload.tenant}"), asynqlock.Snooze(10*time.Second)),
//		asynqlock.On("*", asynqlock.ByTaskID()),
//	)
//	…
//	mux.Use(g.Middleware)
//	server := asynq.NewServer(redis, g.Configure(asynq.Config{Concurrency: 10}))
//
// Tasks with the same key run one at a time, in all processes that share the Redis. The handler's context ends, with a cause, the
// moment the lock is lost; locker.FromContext finds the lease in it, and its fence. The lock is given up when the handler
// returns or panics.
//
// # What asynq does, and what is added
//
// asynq delivers a task at least once. It starts a task again when its time-out is over, or when its worker did not prolong its
// lease of 30 s, and in neither case it waits for the handler that is still at work. Here the second run is kept from starting:
// while the lock is held, which is until the first handler has really returned, no other run of that key begins.
//
// A process that lost its lock, because it was stopped for longer than the lock's TTL or is cut off from Redis, cannot keep another
// from starting. It is told: its handler's context ends. And what it writes after that can be refused, by whatever it writes
// to, with the fence: package sqllock does so in a database.
//
// After a success that asynq could not note, it delivers the task again. [Once] remembers the success in the very step that gives the
// lock up, and drops it.
//
// # When the key is busy
//
//	Snooze(d)  the task comes again later; this is the default
//	Drop()     it is deleted, for what it asks for is being done
//	Archive()  it goes to the archive
//	Wait(d)    before any of these, it waits in its worker, in the key's queue
//
// None of them uses one of the task's retries, also not its last one: see [Guard.Configure] and [WithClones]. Drop and Archive never
// hit a task whose key its own earlier run keeps busy. What else can happen to one that did not get its lock:
//
//	already-done        dropped   Once: the work was done
//	already-running     snoozed   Drop, Archive: an earlier run of this very task is still at work, or its lease not yet over
//	too-many-waiters    snoozed   locker.WithMaxWaiters is reached
//	invalid-key         archived  no key can be made of the task, now or later
//	lock-unavailable    snoozed   the lock server cannot be asked: without the lock nothing runs
//	lock-closed         snoozed   the Locker was closed, because this process stops
//	lock-misconfigured  snoozed   the Locker, or the rule, cannot do that
//	lock-lost           failed    the lock ended before the handler did, which may have been overtaken; like any other error
//
// What is snoozed with no retry left, and without [WithClones], is archived if its time is over before its turn has come.
//
// Middleware outside of this one gets a [*Problem], and asynq's ErrorHandler those that an operator should know of. None of these
// shows the key.
//
// # Enqueueing
//
// A [Client] enqueues tasks so that there is one at a time of each type and key, by the same rules, and with the trace and the
// fences under which they are enqueued.
//
// # Schedules
//
// [RunScheduler] and [RunPeriodicTaskManager] run a schedule in one of several processes.
//
// # Keys of its own
//
// Besides the keys of the rules, asynq-task:QUEUE:ID is locked (ByTaskID, Drop and Archive), asynq-scheduler (see SchedulerKey) and
// asynq-tick:SCHEDULER:ENTRY:SECOND; all with the Locker's prefix. Their names in traces are asynq-task, asynq-scheduler and
// asynq-tick.
package asynqlock
