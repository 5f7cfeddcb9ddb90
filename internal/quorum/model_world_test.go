package quorum

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// event is a step of the model that happens at a certain time.
type event struct {
	time time.Duration
	n    int
	do   func()
}

type events []event

func (q events) Len() int { return len(q) }

func (q events) Less(i, j int) bool {
	return q[i].time < q[j].time || q[i].time == q[j].time && q[i].n < q[j].n
}

func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *events) Push(e any) { *q = append(*q, e.(event)) }

func (q *events) Pop() any { e := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return e }

type model struct {
	rules
	fault   string
	rng     *rand.Rand
	now     time.Duration
	queue   events
	count   int
	n       int
	need    int
	nodes   []*server // by seat; the fault "replacement" puts another server into a seat
	alt     *server   // another server, which some clients reach instead
	swap    int       // the node whose address leads some clients to alt
	clients []*simClient
	ids     int
	holder  *grant
	fence   int64
	grants  int
	broken  string
	calm    bool // true while no fault is under way
	turn    int  // the node that a rolling restart has reached
}

// grant is a lease as its holder sees it.
type grant struct {
	token    string
	deadline time.Duration
}

func newModel(seed uint64, fault string, enabled rules) *model {
	w := &model{rules: enabled, fault: fault, rng: rand.New(rand.NewPCG(seed, 7)), n: 3, swap: -1, calm: true}
	if seed%4 == 3 {
		w.n = 5
	}
	w.need = w.n/2 + 1
	for range w.n {
		w.nodes = append(w.nodes, w.server())
	}
	for i := range 4 {
		c := &simClient{w: w, i: i, texts: make([]string, w.n), longest: 400 * time.Millisecond, cut: -1}
		c.nameNodes(int(seed))
		w.clients = append(w.clients, c)
	}
	return w
}

// nameNodes makes the client's list of nodes. In most runs the clients have different names for the
// nodes, show no address, or have the nodes in another order.
func (c *simClient) nameNodes(seed int) {
	c.order = make([]int, c.w.n)
	for k := range c.order {
		c.order[k] = k
		if seed%5 == 3 || seed%5 == 4 {
			c.order[k] = (k + c.i) % c.w.n
		}
		switch at := c.order[k]; {
		case seed%5 < 2:
			c.labels = append(c.labels, fmt.Sprint("addr", at))
		case seed%5 == 4:
			c.labels = append(c.labels, fmt.Sprint("#", k))
		case c.i == 3: // one name is different
			c.labels = append(c.labels, fmt.Sprint([]string{"addr", "cname"}[min(at, 1)], at))
		default:
			c.labels = append(c.labels, fmt.Sprint([]string{"addr", "host", "ip"}[c.i], at))
		}
	}
}

func (w *model) server() *server {
	w.ids++
	return &server{id: fmt.Sprintf("%040x", uint64(w.ids)*0x9e3779b97f4a7c15), waits: map[string]time.Time{}, offset: w.upTo(modelSkew / 4)}
}

func (w *model) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *model) schedule(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.queue, event{w.now + d, w.count, do})
}

func (w *model) clock(s *server) time.Time { return time.UnixMicro(1e15).Add(w.now + s.offset) }

const modelEnds = 25 * time.Second

func (w *model) run() {
	for _, c := range w.clients {
		w.schedule(w.upTo(50*time.Millisecond), c.work)
		w.schedule(w.upTo(50*time.Millisecond), c.watch)
	}
	w.schedule(3*time.Second, w.harm)
	w.schedule(100*time.Millisecond, w.remember)
	for len(w.queue) > 0 && w.broken == "" && w.now < modelEnds {
		e := heap.Pop(&w.queue).(event)
		w.now = e.time
		e.do()
	}
}

// remember keeps a copy of each server's data for restarts that bring old data back.
func (w *model) remember() {
	for _, s := range w.nodes {
		s.backup = s.copy()
	}
	w.schedule(100*time.Millisecond+w.upTo(400*time.Millisecond), w.remember)
}
