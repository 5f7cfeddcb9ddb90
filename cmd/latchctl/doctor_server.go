package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// greet reads INFO and the clock of the server.
func (p *patient) greet(ctx context.Context) error {
	asked := time.Now()
	at, err := p.client.Time(ctx).Result()
	trip := time.Since(asked)
	switch {
	case redis.IsPermissionError(err): // a refusal also shows that the server answers
		p.report(bad, "clock", "the user may not run TIME, which every step uses", "docs/operations.md has the ACL for a user of locks")
		at = asked.Add(trip / 2)
	case err != nil:
		return err
	}
	p.clocks = append(p.clocks, at.Sub(asked.Add(trip/2)))
	p.report(okay, "reachable", fmt.Sprintf("it answers in %v", trip.Round(time.Microsecond)), "")
	text, err := p.client.Info(ctx).Result()
	if err != nil {
		p.report(hint, "info", "the user may not run INFO, so version, role, eviction, persistence and replicas are not checked", "ACL SETUSER … +info")
		return nil //nolint:nilerr // the server has answered, so the other checks can run
	}
	p.info = make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		p.info[name] = value
	}
	return nil
}

// number returns the number that INFO has under this name, or 0.
func (p *patient) number(name string) int64 {
	n, err := strconv.ParseInt(p.info[name], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (p *patient) version(context.Context) {
	text := p.info["redis_version"]
	if text == "" {
		return
	}
	var major, minor int
	if n, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil || n != 2 {
		p.report(hint, "version", "version "+text+" cannot be read", "")
		return
	}
	onCluster := p.info["cluster_enabled"] == "1"
	switch {
	case p.info["valkey_version"] != "":
		p.report(okay, "version", "Valkey "+p.info["valkey_version"], "") // the first Valkey is Redis 7.2
	case major < 6 || major == 6 && minor < 2:
		p.report(bad, "version", "Redis "+text, "install Redis 6.2 or newer: older ones lack commands that every step uses")
	case onCluster && major < 7:
		p.report(hint, "version", "Redis "+text+" has no sharded channels, so waiters on a Cluster poll", "install Redis 7 or newer")
	default:
		p.report(okay, "version", "Redis "+text, "")
	}
}

func (p *patient) role(context.Context) {
	switch {
	case p.info["loading"] == "1":
		p.report(bad, "role", "it loads its data, and does not answer until all data is loaded", "wait")
	case p.info["role"] == "slave":
		p.report(bad, "role", "it is a replica of "+p.info["master_host"], "give the master; or the Sentinels, with master_name in the URL")
	case p.info["role"] != "":
		p.report(okay, "role", p.info["role"], "")
	}
}

func (p *patient) eviction(context.Context) {
	policy, limit, used := p.info["maxmemory_policy"], p.number("maxmemory"), p.number("used_memory")
	switch {
	case policy == "":
	case limit == 0 && policy != "noeviction":
		p.report(hint, "eviction", "maxmemory-policy "+policy+" has no effect without maxmemory", "run CONFIG SET maxmemory-policy noeviction before somebody sets maxmemory")
	case limit > 0 && policy != "noeviction":
		p.report(bad, "eviction", "the server may drop leases when its memory is full (maxmemory-policy "+policy+")", "CONFIG SET maxmemory-policy noeviction, and give caches a server of their own")
	case limit > 0 && used > limit/10*9:
		p.report(bad, "memory", fmt.Sprintf("%d %% of maxmemory is used; a full server grants no lock", used*100/limit), "raise maxmemory, or remove data that is no lock")
	default:
		p.report(okay, "eviction", "no lease is dropped for lack of memory", "")
	}
}

func (p *patient) persistence(ctx context.Context) {
	switch {
	case p.info["aof_enabled"] == "":
	case p.info["rdb_last_bgsave_status"] == "err", p.info["aof_enabled"] == "1" && p.info["aof_last_write_status"] == "err":
		p.report(bad, "persistence", "the last save has failed; the server may refuse all writes, and so all locks", "look into its log: mostly the disk is full")
	case p.info["aof_enabled"] == "1":
		p.report(okay, "persistence", "append-only file", "")
	default:
		save, err := p.client.ConfigGet(ctx, "save").Result()
		if err == nil && save["save"] != "" {
			p.report(hint, "persistence", "snapshots only: a crash loses the newest leases, and each such holder gets ErrLost", "appendonly yes loses at most a second; data that checks the fence is safe in any case")
			return
		}
		p.report(hint, "persistence", "none was found: a restart loses all leases, and each holder gets ErrLost", "that is a choice; data that checks the fence is safe in any case")
	}
}

func (p *patient) replicas(context.Context) {
	n := p.number("connected_slaves")
	switch {
	case p.info["role"] != "master":
	case n == 0 && p.several:
		p.report(okay, "replicas", "none, and a node of a quorum needs none", "")
	case n == 0:
		p.report(hint, "replicas", "none: while the server is down, nobody gets a lock", "Sentinel, a Cluster or a quorum, if that is too long")
	default:
		behind := int64(0)
		for i := range n {
			if _, offset, found := strings.Cut(p.info["slave"+strconv.FormatInt(i, 10)], "offset="); found {
				offset, _, _ = strings.Cut(offset, ",")
				if at, err := strconv.ParseInt(offset, 10, 64); err == nil {
					behind = max(behind, p.number("master_repl_offset")-at)
				}
			}
		}
		if behind > 1<<20 {
			p.report(bad, "replicas", fmt.Sprintf("%d, one of them %d kB behind: a failover now would lose leases", n, behind>>10), "look for a slow network or a slow replica")
			return
		}
		p.report(hint, "replicas", fmt.Sprintf("%d; a failover can lose the newest leases", n), "WithReplicaAck makes that rare, and data that checks the fence is safe")
	}
}

// cluster checks the state of a Cluster, and calls visit for each of its masters.
func (d *doctor) cluster(ctx context.Context, c *redis.ClusterClient, visit func(context.Context, string, redis.UniversalClient)) {
	says, err := c.ClusterInfo(ctx).Result()
	switch {
	case err != nil:
		d.reportAll(bad, "cluster", "the state of the Cluster cannot be read: "+err.Error(), "ACL SETUSER … +cluster|info, or start the Cluster")
	case !strings.Contains(says, "cluster_state:ok"):
		d.reportAll(bad, "cluster", "the Cluster is not ok: "+strings.Join(strings.Fields(says)[:1], ""), "redis-cli --cluster check, and bring back the masters whose slots are missing")
	default:
		d.reportAll(okay, "cluster", "all slots are served", "")
	}
	var masters []*redis.Client
	found := make(chan *redis.Client)
	go func() {
		defer close(found)
		err = c.ForEachMaster(ctx, func(_ context.Context, m *redis.Client) error { found <- m; return nil })
	}()
	for m := range found {
		masters = append(masters, m)
	}
	if err != nil {
		d.reportAll(bad, "cluster", "its masters cannot be found: "+err.Error(), "start the Cluster")
	}
	for _, m := range masters {
		visit(ctx, m.Options().Addr, m)
	}
}

// compareClocks compares the clocks of all servers with each other and with the clock of this
// machine.
func (d *doctor) compareClocks() {
	least, most := d.clocks[0], d.clocks[0]
	for _, ahead := range d.clocks {
		least, most = min(least, ahead), max(most, ahead)
	}
	switch {
	case most-least > d.skew && d.several:
		d.reportAll(bad, "clock", fmt.Sprintf("the clocks of the servers differ by %v; a node that is off by more than %v does not vote", (most-least).Round(time.Millisecond), d.skew), "run NTP on all servers; let it slew the clocks, not step them")
	case most-least > d.skew:
		d.reportAll(hint, "clock", fmt.Sprintf("the clocks of the servers differ by %v: after a failover leases end that much earlier or later", (most-least).Round(time.Millisecond)), "run NTP on all servers, or raise WithMaxSkew")
	case max(most, -least) > time.Second:
		d.reportAll(hint, "clock", fmt.Sprintf("the clocks of this machine and the servers differ by %v; this does not harm locks, but logs show wrong times", max(most, -least).Round(time.Millisecond)), "run NTP")
	default:
		d.reportAll(okay, "clock", fmt.Sprintf("within %v of this machine's", max(most, -least, time.Millisecond).Round(time.Millisecond)), "")
	}
}
