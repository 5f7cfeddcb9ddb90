package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// This row of P13 measures the load of an idle asynq server that often looks for tasks.
var idleTasksRow = row{
	name:  "P13-idle",
	title: "An idle server of asynq, by its TaskCheckInterval",
	about: `One server with 10 workers and no task, in the process of the bench, for ten turns. 1 s
is asynq's default; Guard.Configure sets 50 ms. Commands are those that the Redis server executes,
including the commands of scripts. CPU is a percentage of one processor. Other parts of asynq
(heartbeat, forwarder, recoverer, janitor) run with both settings.`,
	run: runIdleTasks,
}

func runIdleTasks(ctx context.Context, o order) (f finding, err error) {
	srv, err := launchServer()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	f.table = newTable("TaskCheckInterval", "queues", "commands per second", "Redis CPU %", "client CPU %")
	for _, queues := range []int{1, 5} {
		for _, every := range []time.Duration{time.Second, 50 * time.Millisecond} {
			var commands, server, client []float64
			for round := range o.rounds {
				progress("round %d of %d: %v, %d queues", round+1, o.rounds, every, queues)
				i, err := measureIdle(ctx, srv, 10*o.turn, every, queues)
				if err != nil {
					return f, err
				}
				commands, server, client = append(commands, i.commands), append(server, i.server), append(client, i.client)
			}
			f.table.add(every.String(), strconv.Itoa(queues), medianAndRange("%.0f", commands), medianAndRange("%.2f", server), medianAndRange("%.2f", client))
		}
	}
	return f, nil
}

// idleLoad is the load of an idle server of asynq: commands per second, and the CPU times of Redis
// and of the server in percent of a processor.
type idleLoad struct{ commands, server, client float64 }

// measureIdle runs a server of asynq with this many queues for the time d. The server looks for
// tasks every checkInterval, and finds none.
func measureIdle(ctx context.Context, srv server, d, checkInterval time.Duration, queues int) (idleLoad, error) {
	c := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer c.Close()
	names := make(map[string]int)
	for i := range queues {
		names[fmt.Sprint("queue", i)] = 1
	}
	server := asynq.NewServerFromRedisClient(c, asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel, TaskCheckInterval: checkInterval, DelayedTaskCheckInterval: time.Second, Queues: names,
	})
	if err := server.Start(asynq.NewServeMux()); err != nil {
		return idleLoad{}, err
	}
	defer server.Shutdown()
	time.Sleep(time.Second) // the server starts during this time, so the measurement waits
	before, err := srv.load(ctx)
	if err != nil {
		return idleLoad{}, err
	}
	cpu, err := ownCPU()
	if err != nil {
		return idleLoad{}, err
	}
	time.Sleep(d)
	after, err := srv.load(ctx)
	if err != nil {
		return idleLoad{}, err
	}
	used, err := ownCPU()
	if err != nil {
		return idleLoad{}, err
	}
	spent := after.minus(before)
	var n int
	for command, calls := range spent.calls {
		if !housekeeping(command) {
			n += calls
		}
	}
	percent := func(cpu time.Duration) float64 { return 100 * cpu.Seconds() / d.Seconds() }
	return idleLoad{float64(n) / d.Seconds(), percent(spent.cpu), percent(used - cpu)}, nil
}
