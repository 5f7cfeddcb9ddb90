// Package asynqlock guards asynq tasks with locks. Tasks with the same key run one at a time, and
// with [Once] the work is done once.
//
//	g, err := asynqlock.New(l,
//		asynqlock.WithWaking(rdb),
//		asynqlock.On("email:welcome", asynqlock.Template("user:{payload.user_id}"),
//			asynqlock.Once(24*time.Hour), asynqlock.Drop()),
//		asynqlock.On("report:*", asynqlock.Template("report:{payload.tenant}")),
//		asynqlock.On("*", asynqlock.ByTaskID()),
//	)
//	…
//	mux.Use(g.Middleware)
//	server := asynq.NewServerFromRedisClient(rdb, g.Configure(asynq.Config{Concurrency: 10}))
//	err = g.Run(ctx, server, mux)
//
// When the lock is lost, the handler's context ends, with a cause. locker.FromContext returns the
// lease and its fence from the context. The lock is released when the handler returns or panics.
//
// # What asynq does, and what this package adds
//
// asynq delivers a task at least once. It starts a task again when the task's time-out is over, or
// when the worker did not renew asynq's lease of 30 s, and the first handler may still be running.
// With this package, no other run of the key begins until the first handler has returned. If the
// process was paused for longer than the lock's TTL, or was cut off from Redis, another process may
// start the task. What the first handler writes after that can be refused by its fence: package
// sqllock does so in a database.
//
// asynq also delivers a task again if it could not record the task's success. [Once] records the
// success in the step that releases the lock, and drops the second delivery.
//
// # When the key is busy
//
//	Snooze(d)  the task is put off; this is the default
//	Drop()     the task is deleted: another run of the key does the work
//	Archive()  the task is moved to asynq's archive
//	Wait(d)    before any of these, the task waits in its worker, in the key's queue
//
// With [WithWaking], a task that was put off runs as soon as the tasks ahead of it have released the
// key. Without WithWaking, asynq delivers the task again after a pause.
//
// These policies use no retry of the task: see [Guard.Configure] and [WithWaking]. If the key is
// busy with an earlier run of the same task, Drop and Archive put the task off instead. A task can
// also have one of these Problems:
//
//	already-done        dropped   Once: the work was done
//	already-running     snoozed   Drop, Archive: an earlier run of this task has the key
//	too-many-waiters    snoozed   locker.WithMaxWaiters is reached
//	invalid-key         archived  no key can be made of the task
//	lock-unavailable    snoozed   the lock server cannot be reached
//	lock-closed         snoozed   the Locker was closed, or the Guard stopped
//	lock-misconfigured  snoozed   the rule is wrong, or the Locker does not support it
//	lock-lost           failed    the lock ended before the handler did
//
// A task is never put off beyond its Deadline. A task that cannot be put off waits in its worker.
// If the task's time is over before its turn has come, the task is retried or archived.
//
// Middleware outside of [Guard.Middleware] gets a [*Problem]. asynq's ErrorHandler gets the
// Problems that an operator should see. No Problem shows the key. asynq logs a warning, "revoke
// task", for each task that is dropped.
//
// A [Client] enqueues tasks with their trace and with the fences under which they are enqueued.
// With [Unique], at most one task of each type and key exists at a time.
//
// # Keys of this package
//
// This package locks the keys of the rules. With Drop or Archive, the metadata of a lease is
// asynq-task:QUEUE:ID. In asynq's Redis, this package keeps asynqlock:line:{KEY} and
// asynqlock:called:{KEY}, see [WithWaking].
package asynqlock
