package asynqlock

import (
	"context"
	"crypto/md5" // #nosec G501 -- asynq uses it in the names of its keys
	_ "embed"    // for the scripts
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/unique_move.lua
	moveUniqueText string
	//go:embed lua/unique_end.lua
	endUniqueText string

	moveUniqueScript = redis.NewScript(moveUniqueText)
	endUniqueScript  = redis.NewScript(endUniqueText)
)

// asynq.Unique takes a lock on a task's type, payload and queue. The lock contains the task's ID,
// and asynq releases it when the task with this ID is done. A clone has another ID, so this package
// hands the lock to the clone before the original is deleted. asynq does not release the lock of a
// clone, so this package releases it when the clone is done. After a crash, the lock ends by its
// own TTL.

// uniqueKey returns the key of the task's uniqueness lock, as asynq names it.
func (j *job) uniqueKey() string {
	name := "asynq:{" + j.queue + "}:unique:" + j.task.Type() + ":"
	if j.task.Payload() != nil {
		sum := md5.Sum(j.task.Payload()) // #nosec G401 -- no security depends on it
		name += hex.EncodeToString(sum[:])
	}
	return name
}

// moveUnique hands the task's uniqueness lock, if there is one, to the task's clone.
func (j *job) moveUnique(ctx context.Context, clone string) error {
	if j.guard.redis == nil {
		return nil
	}
	return moveUniqueScript.Run(ctx, j.guard.redis, []string{j.uniqueKey()}, j.taskID, clone).Err()
}

// endUnique ends the uniqueness lock of the task, if the task is a clone and isDone is true.
func (j *job) endUnique(ctx context.Context, isDone bool) {
	if !isDone || j.guard.redis == nil || j.task.Headers()[headerUnique] == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lineBound)
	defer cancel()
	_ = endUniqueScript.Run(ctx, j.guard.redis, []string{j.uniqueKey()}, j.taskID).Err() // after an error, the TTL ends the lock
}
