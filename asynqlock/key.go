package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// Keys makes the keys of a rule's tasks. [Template], [KeyFunc] and [ByTaskID] return Keys.
type Keys struct {
	compile func(*config) (keyOf, error)
	perTask bool // each task has its own key, as with ByTaskID
}

// keyOf returns the key of a task. Its errors are ErrInvalidKey: after such an error, a retry of
// the task would fail too.
type keyOf func(ctx context.Context, m *message) (string, error)

// KeyFunc makes the key with makeKey, a function of the task, for payloads that are no JSON, or keys
// that no template describes. The returned text is the key, without encoding. So two tasks whose
// values contain ':' may get the same key; [key.Of] encodes values. An empty text is refused. If makeKey returns an error for a task, the task is archived.
// So makeKey itself must repeat operations that failed temporarily.
func KeyFunc(makeKey func(ctx context.Context, t *asynq.Task) (string, error)) Keys {
	return Keys{compile: func(*config) (keyOf, error) {
		return func(ctx context.Context, m *message) (string, error) {
			text, err := makeKey(ctx, m.task)
			if err != nil {
				return "", &invalidKey{err}
			}
			if text == "" {
				return "", fmt.Errorf("%w: the function given to KeyFunc returned no key for this task", locker.ErrInvalidKey)
			}
			return text, nil
		}, nil
	}}
}

// Template makes the key from a template of literal text and of parts of the task, as package
// [github.com/latchkit/latchkit/locker/key] describes it: "report:{payload.tenant}:{queue}". The
// parts are {payload.NAME}, {header.NAME}, {queue}, {type} and {id}. {payload.NAME} is a member of
// the JSON payload, and {payload.user.id} is a nested member. The part {id} is the task's ID. A filter,
// as in {payload.order|int}, gives each identity one spelling.
func Template(text key.Key) Keys {
	return Keys{perTask: strings.Contains(string(text), "{id"), compile: func(c *config) (keyOf, error) {
		t, err := template.Grammar[*message]{Sources: sources(), Secret: c.secret}.Compile(text)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, m *message) (string, error) {
			return taskKey(t.Key(ctx, m))
		}, nil
	}}
}

// ByTaskID makes the task's ID the key. So no task runs twice at a time, and different tasks run
// independently.
func ByTaskID() Keys { return Template("asynq-task:{queue}:{id}") }

// message is a task, and asynq's data about its delivery.
type message struct {
	task      *asynq.Task
	delivered bool   // asynq has delivered the task, so the fields below are set
	taskID    string // this task's ID
	queue     string

	retried, maxRetry int // the number of retries that were used, and the number that is allowed

	ranBefore bool // the task has run or tried to run before, so it is not a duplicate
}

// read sets the fields of m for a delivery of t.
func (m *message) read(ctx context.Context, t *asynq.Task) {
	m.task = t
	if m.taskID, m.delivered = asynq.GetTaskID(ctx); !m.delivered {
		return
	}
	m.queue, _ = asynq.GetQueueName(ctx)
	m.retried, _ = asynq.GetRetryCount(ctx)
	m.maxRetry, _ = asynq.GetMaxRetry(ctx)
	m.ranBefore = m.retried > 0
}

type (
	source = template.Source[*message]
	read   = template.Read[*message]
)

// sources returns the parts of a task.
func sources() map[string]source {
	alone := func(noun string, value func(m *message) string) source {
		return source{Noun: noun, Alone: true, Bind: func(string) (read, error) {
			return func(_ context.Context, m *message) (string, error) { return value(m), nil }, nil
		}}
	}
	return map[string]source{
		"payload": {Noun: "member of the payload", Bind: bindPayload},
		"header": {Noun: "header", Bind: func(name string) (read, error) {
			return func(_ context.Context, m *message) (string, error) { return m.task.Headers()[name], nil }, nil
		}},
		"queue": alone("queue", func(m *message) string { return m.queue }),
		"type":  alone("type", func(m *message) string { return m.task.Type() }),
		"id":    alone("task ID", func(m *message) string { return m.taskID }),
	}
}

// invalidKey is the error of a task for which no key can be made.
type invalidKey struct{ error }

func (i *invalidKey) Unwrap() error { return i.error }

// Is makes errors.Is find ErrInvalidKey in the error.
func (i *invalidKey) Is(target error) bool { return target == locker.ErrInvalidKey }

// taskKey returns the result of a template, with an invalidKey. The text of an error of package key
// is about a request, so a text about a task replaces it.
func taskKey(text string, err error) (string, error) {
	if err == nil {
		return text, nil
	}
	if e, ok := errors.AsType[*template.Error](err); ok && e.Err == template.ErrMissing {
		lacks := "the task lacks the " + e.Noun
		if e.Part.Name != "" {
			lacks += fmt.Sprintf(" %q", e.Part.Name)
		}
		err = errors.New(lacks)
	}
	return "", &invalidKey{err}
}
