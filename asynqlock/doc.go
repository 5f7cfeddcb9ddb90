// Package asynqlock guards asynq tasks with locks. Tasks with the same key run one at a time, and
// with [Once] the work is done once.
//
//	g, err := asynqlock.New(l,
//		asynqlock.WithWaking(rdb),
//		asynqlock.On("email:welcome", asynqlock.Fields[Welcome]("user"),
//			asynqlock.Once(24*time.Hour), asynqlock.Drop()),
//		asynqlock.On("report:*", asynqlock.Template("report:{payload.tenant}")),
//		asynqlock.On("*", asynqlock.ByTaskID()),
//	)
//	…
//	mux.Use(g.Middleware)
//	server := asynq.NewServerFromRedisClient(rdb, g.Configure(asynq.Config{Concurrency: 10}))
//	err = g.Run(ctx, server, mux)
//
// The rule holds in all processes that share the Redis. The context of a handler ends, with a
// cause, the moment the lock is lost. locker.FromContext finds the lease in the context, and its
// fence. The lock is released when the handler returns or panics.
//
// # What asynq does, and what this package adds
//
// asynq delivers a task at least once. It starts a task again when the task's time-out is over, or
// when the worker did not prolong asynq's lease of 30 s. In neither case does asynq wait for the
// handler that is still at work. This package keeps the second run from starting: no other run of
// the key begins until the first handler has returned.
//
// A process may lose its lock, because the process was stopped for longer than the lock's TTL or is
// cut off from Redis. Then another process may start. The context of the first handler ends. What
// the first handler writes after that can be refused with the fence, by the system that it writes
// to: package sqllock does so in a database.
//
// asynq delivers a task again if it could not record a success. [Once] records the success in the
// step that releases the lock, and drops the second delivery.
//
// # When the key is busy
//
//	Snooze(d)  the task is put off; this is the default
//	Drop()     the task is deleted: another run of the key is at work
//	Archive()  the task goes to the archive
//	Wait(d)    before any of these, the task waits in its worker, in the key's queue
//
// With [WithWaking] a task that was put off runs as soon as the key is free, after the tasks that
// came before it. Without it, the task comes again after a pause.
//
// None of the policies uses one of the task's retries, also not the last one: see [Guard.Configure]
// and [WithWaking]. Drop and Archive never hit a task whose key is busy with an earlier run of the
// same task. A task that did not get its lock may have other problems:
//
//	already-done        dropped   Once: the work was done
//	already-running     snoozed   Drop, Archive: an earlier run of this task has the key
//	too-many-waiters    snoozed   locker.WithMaxWaiters is reached
//	invalid-key         archived  no key can be made of the task
//	lock-unavailable    snoozed   the lock server cannot be reached
//	lock-closed         snoozed   the Locker was closed, or the Guard stopped
//	lock-misconfigured  snoozed   the Locker, or the rule, cannot do that
//	lock-lost           failed    the lock ended before the handler did
//
// A task with lock-lost may have been overtaken. It is retried like after any other error.
//
// A task that is put off is never put off beyond its Deadline. A task that cannot be put off waits
// in its worker. If its time is over before its turn has come, it is retried, or archived.
//
// Middleware outside of this one gets a [*Problem]. asynq's ErrorHandler gets the Problems that an
// operator should know of. No Problem shows the key. asynq logs a warning, "revoke task", for each
// task that is dropped.
//
// # Enqueueing
//
// A [Client] enqueues tasks with their trace and with the fences under which they are enqueued.
// With [Unique] there is one task at a time of each type and key.
//
// # Schedules
//
// [RunScheduler] and [RunPeriodicTaskManager] run a schedule in one of several processes. [CatchUp]
// makes up ticks that were due while no process led.
//
// # Keys of this package
//
// Besides the keys of the rules, the Locker locks asynq-scheduler (see [SchedulerKey]),
// asynq-tick:SCHEDULER:ENTRY:SECOND, and asynq-task:QUEUE:ID where Drop or Archive need it. Their
// names in traces are asynq-scheduler, asynq-tick and asynq-task; asynq-wake is a wait for the key
// of a task that is put off. asynq's Redis has asynqlock:line:{KEY} and asynqlock:call:{KEY}
// ([WithWaking]) and asynqlock:ticks:{SCHEDULE} ([CatchUp]).
package asynqlock
