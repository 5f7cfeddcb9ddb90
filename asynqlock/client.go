package asynqlock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/locker"
)

// A Client enqueues tasks. To the headers of each task, it adds the context of the trace, and the
// fences of the leases under which the task is enqueued. If a rule has [Unique], a Client enqueues
// a task only if no other task with this type and key exists. This key is also the key of the lock
// that guards the task's runs. [Guard.Client] returns a Client. A Client is safe for concurrent
// use.
//
// The [asynq.TaskID] of a unique task is made of the task's type and key. So the task is unique for
// exactly as long as asynq keeps it in its queue: in the states scheduled, pending, active, retry
// and archived, and in the state completed until its Retention is over and asynq has removed it,
// some seconds later. [asynq.Unique] uses a separate lock instead, which can end before or after
// the task.
type Client struct {
	guard  *Guard
	client *asynq.Client
}

// Client returns a Client that enqueues through c.
func (g *Guard) Client(c *asynq.Client) *Client { return &Client{g, c} }

// EnqueueContext enqueues t like [asynq.Client.EnqueueContext]. The options with which t was made
// count too. A duplicate of a unique task is refused with [asynq.ErrDuplicateTask].
func (c *Client) EnqueueContext(ctx context.Context, t *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	own, err := optionsOf(t)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s: %w", t.Type(), err)
	}
	opts = slices.Concat(own, opts) // the last option of a kind wins, as in asynq
	r := c.guard.rules.match(t.Type())
	t = asynq.NewTaskWithHeaders(t.Type(), t.Payload(), c.guard.headers(ctx, t.Headers()))
	if r != nil && r.unique {
		return c.enqueueUnique(ctx, r, t, opts)
	}
	return c.client.EnqueueContext(ctx, t, opts...)
}

// enqueueUnique enqueues t, unless there is a task of its type and key. r is the rule of t.
func (c *Client) enqueueUnique(ctx context.Context, r *rule, t *asynq.Task, opts []asynq.Option) (*asynq.TaskInfo, error) {
	m := message{task: t, queue: "default"}
	for _, o := range opts {
		switch o.Type() {
		case asynq.QueueOpt:
			m.queue, _ = o.Value().(string)
		case asynq.UniqueOpt:
			return nil, fmt.Errorf("asynqlock: the task %s has Unique from its rule and the option asynq.Unique; remove asynq.Unique: "+
				"if the task's ID is taken, the lock of asynq.Unique would block the task until that lock expires", t.Type())
		case asynq.TaskIDOpt:
			return nil, fmt.Errorf("asynqlock: the task %s gets its ID from its rule, because of Unique; leave asynq.TaskID out", t.Type())
		default:
		}
	}
	text, err := r.key(ctx, &m)
	if err != nil {
		return nil, fmt.Errorf("asynqlock: the task %s has no key: %w", t.Type(), err)
	}
	sum := sha256.Sum256([]byte(t.Type() + "\x00" + text))
	id := "unique-" + base64.RawURLEncoding.EncodeToString(sum[:])

	info, err := c.client.EnqueueContext(ctx, t, append(slices.Clip(opts), asynq.TaskID(id))...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil, fmt.Errorf("asynqlock: a task %s with the same key exists in the queue %s (%s); if it is archived, run it or delete it: %w",
			t.Type(), m.queue, id, asynq.ErrDuplicateTask)
	}
	return info, err
}

// A Fence is a lease under which a task was enqueued.
type Fence struct {
	Key   string `json:"key"`
	Fence uint64 `json:"fence"`
}

// headerFences is the header with the leases under which a Client enqueued the task.
const headerFences = "latchkit-fences"

// Fences returns the leases under which t was enqueued by a [Client], the innermost first. A
// handler passes a fence to the resource that the lock protects. The resource can then refuse a
// task that a stale holder enqueued.
func Fences(t *asynq.Task) []Fence {
	var fences []Fence
	if text := t.Headers()[headerFences]; text != "" {
		_ = json.Unmarshal([]byte(text), &fences) // no error: an invalid text was not written by a Client
	}
	return fences
}

// headers returns the headers own of a task, together with the fences and the trace context of ctx.
func (g *Guard) headers(ctx context.Context, own map[string]string) map[string]string {
	headers := make(map[string]string)
	maps.Copy(headers, own)
	if leases := locker.LeasesFromContext(ctx); len(leases) > 0 {
		fences := make([]Fence, len(leases))
		for i, l := range leases {
			fences[i] = Fence{l.Key(), l.Fence()}
		}
		text, _ := json.Marshal(fences) // cannot fail for texts and numbers
		headers[headerFences] = string(text)
	}
	if g.propagator != nil {
		g.propagator.Inject(ctx, headers)
	}
	return headers
}
