package asynqlock

import (
	"fmt"
	"reflect"

	"github.com/hibiken/asynq"
)

// optionsOf returns the options that a task was made with. asynq does not export them, and a Client
// makes a new task in order to add headers. This is the only look of latchkit into asynq. If the
// field is gone in another version of asynq, a Client refuses each task.
func optionsOf(t *asynq.Task) ([]asynq.Option, error) {
	f := reflect.ValueOf(t).Elem().FieldByName("opts")
	if !f.IsValid() || f.Type() != reflect.TypeFor[[]asynq.Option]() {
		return nil, fmt.Errorf("this version of asynq is not supported: %T has no field opts of type []asynq.Option", t)
	}
	return *(*[]asynq.Option)(f.Addr().UnsafePointer()), nil
}
