package chaos_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// round is one run on new servers, with one topology and one kind of lock.
type round struct {
	Topology string
	Kind     string
	Seed     uint64
	For      time.Duration
	Library  string
	Unfenced bool
	LongHold bool
	Brisk    bool     // many keys and callers, and short holds, of which one in six writes
	Only     []string // the names of the faults; none: all that fit
	Patch    [2]string
	Keys     int
}

const (
	processes    = 4
	callers      = 3
	briskCallers = 24
	briskKeys    = 1000
)

// world is what a round runs in.
type world struct {
	*testing.T
	round
	rng *rand.Rand
	dir string // the folder of the histories

	servers  []*redistest.Server // that keep locks
	replicas []*redistest.Server // of the servers, in a quorum of pairs
	own      []*chaos.Proxy      // the ways of the test itself to the nodes of a quorum of pairs
	clocks   map[*redistest.Server]*redistest.Clock
	sentinel *redistest.SentinelSet
	cluster  *redistest.Cluster
	atomic   string // the command by which the Cluster moves a slot in one step, if it has one
	durable  bool   // the servers keep their data over a restart

	workers []*seat
	driver  string
	dsn     string
	db      *sql.DB
	watch   *locker.Engine // of a quorum: sees which nodes vote

	killed   map[string]instant
	losses   []loss
	serving  []string // the servers that said at the time looked that they are masters
	looked   instant
	troubles []trouble
	busy     map[*redistest.Server]bool // servers with a fault now
}

// seat is the place of one worker process. A killed worker gets a successor.
type seat struct {
	order   order
	child   *proc.Child
	proxies map[string]*chaos.Proxy // for each address of a server
	wire    *chaos.Wire             // to the database server
	number  int
	faulty  bool
}

// trouble is a time in which some faults were active.
type trouble struct {
	Names []string
	span
}

func newWorld(t *testing.T, r round) *world {
	t.Helper()
	w := &world{
		T: t, round: r, rng: rand.New(rand.NewPCG(r.Seed, 0)), dir: historyFolder(t),
		clocks: map[*redistest.Server]*redistest.Clock{}, killed: map[string]instant{}, busy: map[*redistest.Server]bool{},
	}
	w.Logf("the histories are in %s", w.dir)
	w.startServers()
	w.openDatabase()
	if w.quorum() {
		w.enroll()
	}
	for i := range processes {
		w.workers = append(w.workers, w.newSeat(i))
	}
	for _, s := range w.workers {
		w.start(s)
	}
	return w
}

// callers returns how many callers each process has.
func (r round) callers() int {
	if r.Brisk {
		return briskCallers
	}
	return callers
}

// historyFolder returns a folder that stays when the test has failed.
func historyFolder(t *testing.T) string {
	dir, err := os.MkdirTemp("", "chaos") //nolint:usetesting // t.TempDir would remove the histories of a failure
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	return dir
}

func (w *world) quorum() bool { return nodesOf[w.Topology] > 0 }

func (w *world) startServers() {
	w.Helper()
	var args []string
	if w.durable = w.rng.IntN(3) == 0 && w.Patch[0] == "" && w.Only == nil; w.durable {
		args = []string{"--appendonly", "yes", "--appendfsync", "always"}
	}
	switch w.Topology {
	case sentinel:
		w.durable = false
		w.sentinel = redistest.StartSentinel(w)
		w.sentinel.FailOverAfter(w, time.Second)
		w.servers = w.sentinel.Servers
		return
	case cluster:
		w.durable = false
		w.cluster = redistest.StartCluster(w, "--cluster-node-timeout", "2000")
		w.servers = append(slices.Clone(w.cluster.Masters), w.cluster.Replicas...)
		w.atomic = w.cluster.Masters[0].AtomicMove(w)
		return
	}
	pairs := w.Topology == quorumPairs
	if pairs {
		w.durable, args = false, []string{"--repl-diskless-sync-delay", "0"}
	}
	start := func() *redistest.Server {
		s, clock := redistest.StartWithClock(w, args...)
		w.clocks[s] = clock
		return s
	}
	for i := range max(nodesOf[w.Topology], 1) {
		w.servers = append(w.servers, start())
		if pairs {
			w.replicas = append(w.replicas, start())
			w.own = append(w.own, chaos.NewProxy(w, w.servers[i].Addr()))
			w.follow(w.replicas[i], w.servers[i].Addr())
		}
	}
}

// follow makes s the replica of the master at the address master, or a master if that is "".
func (w *world) follow(s *redistest.Server, master string) {
	w.Helper()
	host, port, state := "no", "one", "role:master"
	if master != "" {
		host, port, _ = net.SplitHostPort(master)
		state = "master_link_status:up"
	}
	await(w.T, "the server has "+state, func() bool {
		return strings.Contains(w.admin(s, func(ctx context.Context, c *redis.Client) string {
			c.ReplicaOf(ctx, host, port) // does nothing if it is so already
			return c.Info(ctx, "replication").Val()
		}), state)
	})
}

// openDatabase makes the register of each key in PostgreSQL or SQLite.
func (w *world) openDatabase() {
	w.Helper()
	if w.rng.IntN(5) < 3 {
		server, schema := sqltest.Shared(w, sqltest.Postgres), fmt.Sprintf("chaos_%d_%d", w.Seed, time.Now().UnixNano())
		admin, err := sql.Open("pgx", server.DSN("postgres"))
		if err == nil {
			_, err = admin.ExecContext(w.Context(), "CREATE SCHEMA "+schema)
			_ = admin.Close()
		}
		if err != nil {
			w.Fatal(err)
		}
		w.driver, w.dsn = "pgx", server.DSN("postgres")+"&search_path="+schema
	} else {
		w.driver = "sqlite"
		w.dsn = "file:" + filepath.Join(w.dir, "register.db") + "?_pragma=busy_timeout(3000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}
	db, err := sql.Open(w.driver, w.dsn)
	if err != nil {
		w.Fatal(err)
	}
	w.db = db
	w.Cleanup(func() { _ = db.Close() })
	w.exec("CREATE TABLE register (k VARCHAR(50) PRIMARY KEY, v BIGINT NOT NULL)")
	w.exec("CREATE TABLE log (op VARCHAR(50) PRIMARY KEY, k VARCHAR(50) NOT NULL, before BIGINT NOT NULL, fence BIGINT NOT NULL)")
	w.exec("CREATE TABLE late (k VARCHAR(50) PRIMARY KEY, v BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)")
	w.exec("CREATE TABLE late_log (op VARCHAR(50) PRIMARY KEY, k VARCHAR(50) NOT NULL, before BIGINT NOT NULL, fence BIGINT NOT NULL)")
	for i := range w.Keys {
		for _, table := range []string{"register", "late"} {
			w.exec(placeholders(w.driver, "INSERT INTO "+table+" (k, v) VALUES (?, 0)"), fmt.Sprint("chaos:", i))
		}
	}
	w.migrate()
}

func (w *world) exec(statement string, args ...any) {
	w.Helper()
	if _, err := w.db.ExecContext(w.Context(), statement, args...); err != nil {
		w.Fatalf("%s: %v", statement, err)
	}
}

// rows returns the committed increments, the committed late writes, and the values of the
// registers.
func (w *world) rows() (rows, late []logged, final map[string]int64) {
	w.Helper()
	final = map[string]int64{}
	values, err := w.db.QueryContext(w.Context(), "SELECT k, v FROM register")
	if err != nil {
		w.Fatal(err)
	}
	defer values.Close()
	for values.Next() {
		var key string
		var v int64
		if err := values.Scan(&key, &v); err != nil {
			w.Fatal(err)
		}
		final[key] = v
	}
	return w.logged("log"), w.logged("late_log"), final
}

func (w *world) logged(table string) (rows []logged) {
	w.Helper()
	found, err := w.db.QueryContext(w.Context(), "SELECT op, k, before, fence FROM "+table)
	if err != nil {
		w.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var r logged
		var fence int64
		if err := found.Scan(&r.op, &r.key, &r.before, &fence); err != nil {
			w.Fatal(err)
		}
		r.fence = uint64(fence)
		rows = append(rows, r)
	}
	return rows
}

func (w *world) enroll() {
	w.Helper()
	nodes := w.nodes()
	if err := locker.EnrollRedlock(w.Context(), nodes, quorumOptions...); err != nil {
		w.Fatal(err)
	}
	var err error
	if w.watch, err = locker.NewRedlock(nodes, quorumOptions...); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = w.watch.Close(context.Background()) })
}

func (w *world) nodes() (all []locker.Client) {
	for i, s := range w.servers {
		c := s.Client(w)
		if w.own != nil { // they lead to the masters of the pairs
			c = s.Client(w, func(o *redis.Options) { o.Addr = w.own[i].Addr() })
		}
		all = append(all, c)
	}
	return all
}

// awaitVotes returns when all nodes vote, or after a while.
func (w *world) awaitVotes() bool {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		nodes, err := w.watch.Nodes(w.Context())
		if err == nil && !slices.ContainsFunc(nodes, func(n store.Node) bool { return n.State != store.NodeVotes }) {
			return true
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the pause between looks
	}
	return false
}

func (w *world) newSeat(i int) *seat {
	w.Helper()
	s := &seat{proxies: map[string]*chaos.Proxy{}}
	s.order = order{
		Name: fmt.Sprint("w", i), Topology: w.Topology, Kind: w.Kind, Library: w.Library, Ways: map[string]string{},
		Keys: w.Keys, Callers: w.callers(), TTL: roundTTL, Driver: w.driver, DSN: w.dsn, Unfenced: w.Unfenced, LongHold: w.LongHold, Brisk: w.Brisk,
	}
	for i, server := range w.servers {
		p := chaos.NewProxy(w, server.Addr())
		if w.replicas != nil { // the same way leads to the replica when it is promoted
			s.proxies[w.replicas[i].Addr()] = p
		}
		if w.Patch[0] != "" {
			p.Patch(w.Patch[0], w.Patch[1])
		}
		s.proxies[server.Addr()], s.order.Ways[server.Addr()] = p, p.Addr()
		s.order.Addrs = append(s.order.Addrs, server.Addr())
	}
	if w.sentinel != nil {
		s.order.Addrs = w.sentinel.Addrs()
	}
	if w.driver == "pgx" {
		dsn, err := url.Parse(w.dsn)
		if err != nil {
			w.Fatal(err)
		}
		s.wire = chaos.NewWire(w, dsn.Host)
		dsn.Host = s.wire.Addr()
		s.order.DSN = dsn.String()
	}
	return s
}

// start starts the process of a seat.
func (w *world) start(s *seat) {
	w.Helper()
	o := s.order
	o.Name = fmt.Sprint(o.Name, "-", s.number)
	o.Seed = w.Seed + uint64(s.number)*1000
	o.History = filepath.Join(w.dir, o.Name+".history")
	text, err := json.Marshal(o)
	if err != nil {
		w.Fatal(err)
	}
	s.child = workers.Start(w, string(text))
	s.child.Expect(w, "ready")
}

func (s *seat) name() string { return fmt.Sprint(s.order.Name, "-", s.number) }

// masters returns the servers that are masters now.
func (w *world) masters() []*redistest.Server {
	if w.sentinel == nil && w.cluster == nil {
		return w.servers
	}
	var all []*redistest.Server
	for _, s := range w.servers {
		if w.busy[s] {
			continue
		}
		if w.saysMaster(s) {
			all = append(all, s)
		}
	}
	if w.sentinel != nil && len(all) > 1 { // the former master does not know yet that it is a replica
		addr := w.named()
		all = slices.DeleteFunc(all, func(s *redistest.Server) bool { return s.Addr() != addr })
	}
	return all
}

// named returns the address of the master that a Sentinel names.
func (w *world) named() string {
	return w.admin(w.sentinel.Sentinels[0], func(ctx context.Context, c *redis.Client) string {
		list, _ := c.Do(ctx, "sentinel", "get-master-addr-by-name", redistest.SentinelName).StringSlice()
		return strings.Join(list, ":")
	})
}

// isHeadless reports whether clients find no master. Sentinels that were disturbed in a failover may
// leave servers that replicate each other, and then find none that they could promote.
func (w *world) isHeadless() bool {
	if w.sentinel == nil {
		return false
	}
	addr := w.named()
	return !slices.ContainsFunc(w.servers, func(s *redistest.Server) bool { return s.Addr() == addr && w.saysMaster(s) })
}

func (w *world) saysMaster(s *redistest.Server) bool { return w.role(s) == "master" }

// role returns master or slave, as the server says; "": it does not answer.
func (w *world) role(s *redistest.Server) string {
	return w.admin(s, func(ctx context.Context, c *redis.Client) string {
		_, after, _ := strings.Cut(c.Info(ctx, "replication").Val(), "role:")
		role, _, _ := strings.Cut(after, "\r")
		return role
	})
}

// admin asks one server directly.
func (w *world) admin(s *redistest.Server, ask func(ctx context.Context, c *redis.Client) string) string {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
	defer cancel()
	return ask(ctx, c)
}

// stop ends all workers, waits until their leases are over, and looks for what they have left.
func (w *world) stop() (leftovers []string) {
	w.Helper()
	for _, s := range w.workers {
		s.child.Send("stop")
	}
	for _, s := range w.workers {
		s.child.Expect(w, "closed")
		s.child.Kill()
	}
	deadline := time.Now().Add(8 * time.Second)
	for {
		if leftovers = w.leftovers(); len(leftovers) == 0 || time.Now().After(deadline) {
			return leftovers
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the pause between looks
	}
}

// describeCluster logs how each node sees the Cluster.
func (w *world) describeCluster() {
	if w.cluster == nil {
		return
	}
	for _, s := range w.servers {
		w.Logf("%s:\n%s", s.Addr(), w.admin(s, func(ctx context.Context, c *redis.Client) string {
			return c.ClusterInfo(ctx).String() + "\n" + c.ClusterNodes(ctx).String()
		}))
	}
}

// leftovers returns the keys on all masters that no lock needs any more. Counters, and the markers
// of a quorum's nodes, stay. Tombstones and queues end by themselves.
func (w *world) leftovers() (left []string) {
	for _, s := range w.masters() {
		w.admin(s, func(ctx context.Context, c *redis.Client) string {
			for keys := c.Scan(ctx, 0, "*", 1000).Iterator(); keys.Next(ctx); {
				key := keys.Val()
				lease := strings.HasPrefix(key, "chaos:") || strings.HasPrefix(key, "stripe:")
				if strings.HasPrefix(key, "latchkit:f:") || key == "latchkit:node" {
					continue
				}
				if ttl := c.TTL(ctx, key).Val(); lease || ttl == -1 {
					left = append(left, fmt.Sprintf("%s on %s, TTL %v", key, s.Addr(), ttl))
				}
			}
			return ""
		})
	}
	return left
}
