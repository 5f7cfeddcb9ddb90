package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// P24 measures the same locks on other servers.
var serversRow = row{
	name:  "P24",
	title: "Uncontended locks on several servers, a key for each goroutine",
	about: `As P2, on the redis-server in PATH and on those in the folders of the option -servers. The servers
take turns too, so a ratio compares turns of one round: × first is the throughput as a part of the
same contestant's on the first server.`,
	run: runServers,
}

func runServers(ctx context.Context, o order) (f finding, err error) {
	libraries := contestantsNamed("floor", latchkit, "redislock 100ms")
	var field []contestant // each library on each server
	servers := make(map[string]server)
	for _, folder := range append([]string{""}, o.servers...) {
		srv, err := launchFrom(folder)
		if err != nil {
			return f, err
		}
		defer func() { err = errors.Join(err, srv.close()) }()
		version := versionOf(ctx, srv)
		for _, c := range libraries {
			c.name = version + " | " + c.name
			servers[c.name] = srv
			field = append(field, c)
		}
	}
	f.table = newTable("server", "contestant", "goroutines", "locks/s", "× first", "× floor", "client CPU µs", "server CPU µs")
	for _, workers := range []int{1, 64} {
		busy := shape{processes: 1, workers: workers}
		turns, err := interleave(field, o.rounds, func(c contestant) (turn, error) {
			srv := servers[c.name]
			_, c.name, _ = strings.Cut(c.name, " | ")
			return busy.take(ctx, srv, c, o.turn)
		})
		if err != nil {
			return f, err
		}
		for i, c := range field {
			t, library := turns[c.name], i%len(libraries)
			version, name, _ := strings.Cut(c.name, " | ")
			f.table.add(version, name, fmt.Sprint(workers), medianAndRange("%.0f", figuresOf(t, turn.perSecond)),
				medianAndRange("%.2f", figureRatios(turns, c.name, field[library].name, turn.perSecond)),
				medianAndRange("%.2f", figureRatios(turns, c.name, field[i-library].name, turn.perSecond)),
				medianText("%.1f", figuresOf(t, turn.clientCPU)), medianText("%.1f", figuresOf(t, turn.serverCPU)))
		}
	}
	return f, nil
}

// launchFrom starts the redis-server in folder; "" is the one in PATH.
func launchFrom(folder string) (server, error) {
	if folder != "" {
		path := os.Getenv("PATH")
		defer func() { _ = os.Setenv("PATH", path) }()
		if err := os.Setenv("PATH", folder+string(os.PathListSeparator)+path); err != nil {
			return server{}, err
		}
	}
	return launchServer()
}

// versionOf returns the name and the version of a server. A Valkey also says which Redis it is
// compatible with.
func versionOf(ctx context.Context, srv server) string {
	info := srv.witness.InfoMap(ctx, "server")
	for _, name := range []string{"valkey", "redict", "redis"} {
		if version := info.Item("Server", name+"_version"); version != "" {
			return strings.ToUpper(name[:1]) + name[1:] + " " + version
		}
	}
	return "unknown"
}
