package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/latchkit/latchkit/asynqlock"
)

// ofAsynq begins the argument of show when it names the line of asynq tasks that wait for a key.
const ofAsynq = "asynq:"

// lineFlags are the flags of show for a line of asynq tasks.
type lineFlags struct {
	prefix string
	repair bool
}

func (f *lineFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.prefix, "prefix", "", "with asynq:KEY, the prefix that the Guard has from asynqlock.WithPrefix; KEY then lacks it")
	c.Flags().BoolVar(&f.repair, "repair", false, "with asynq:KEY, remove the tasks that cannot run any more, and let a process look at the line")
}

// showLine shows the tasks that wait for key in asynq's Redis.
func (s *servers) showLine(c *cobra.Command, key string, f lineFlags, asJSON bool) error {
	ctx, cancel := s.bound(c.Context())
	defer cancel()
	cs, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer cs.Close()
	if len(cs) > 1 {
		return usage("%s%s needs one --node: the Redis of asynq", ofAsynq, key)
	}
	l, err := cs.engine()
	if err != nil {
		return err
	}
	defer func() { _ = l.Close(context.WithoutCancel(ctx)) }() // no lease is held
	// A Guard needs a rule. This one guards no task, because no server has the Guard.
	all := asynqlock.On("*", asynqlock.Key(func(map[string]any) string { return key }))
	g, err := asynqlock.New(l, asynqlock.WithWaking(cs[0]), asynqlock.WithPrefix(f.prefix), all)
	if err != nil {
		return err
	}
	defer func() { _ = g.Stop(context.WithoutCancel(ctx)) }() // the Guard has no tasks
	out := c.OutOrStdout()
	if f.repair {
		n, err := g.RepairLine(ctx, key)
		if err != nil {
			return overdue(ctx, err)
		}
		if !asJSON {
			fmt.Fprintf(out, "removed %d tasks that cannot run any more\n", n)
		}
	}
	tasks, err := g.Line(ctx, key)
	if err != nil {
		return overdue(ctx, err)
	}
	if asJSON {
		return lineAsJSON(out, key, tasks)
	}
	return lineAsText(out, key, tasks)
}

// stateOf returns asynq's word for the state of a task, or "gone" if asynq does not have the task.
func stateOf(t asynqlock.LineTask) string {
	if t.State == 0 {
		return "gone"
	}
	return t.State.String()
}

// lineTaskJSON is a task as --json prints it.
type lineTaskJSON struct {
	State   string    `json:"state"`
	Type    string    `json:"type,omitempty"`
	Queue   string    `json:"queue"`
	ID      string    `json:"id"`
	Arrived time.Time `json:"arrived"`
}

func lineAsJSON(out io.Writer, key string, tasks []asynqlock.LineTask) error {
	all := make([]lineTaskJSON, len(tasks))
	for i, t := range tasks {
		all[i] = lineTaskJSON{stateOf(t), t.Type, t.Queue, t.ID, t.Arrived}
	}
	return writeJSON(out, struct {
		Key  string         `json:"key"`
		Line []lineTaskJSON `json:"line"`
	}{key, all})
}

func lineAsText(out io.Writer, key string, tasks []asynqlock.LineTask) error {
	if len(tasks) == 0 {
		_, err := fmt.Fprintf(out, "no task waits for %s\n", printable(key))
		return err
	}
	rows := [][]string{strings.Fields("PLACE STATE TYPE QUEUE ID ARRIVED")}
	for i, t := range tasks {
		rows = append(rows, []string{
			strconv.Itoa(i + 1), stateOf(t), printable(t.Type), printable(t.Queue), printable(t.ID), t.Arrived.Local().Format(time.DateTime),
		})
	}
	_, err := io.WriteString(out, grid(rows))
	return err
}
