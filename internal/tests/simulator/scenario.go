package simulator

import (
	"slices"
	"time"
)

// Scenario has the settings of a run. Each probability is for one call, message or wait.
type Scenario struct {
	Name      string
	Length    time.Duration // the time in which new waits and faults begin
	Processes int
	Workers   int // number of workers in each process
	Keys      int
	Foreign   int // number of clients of another library

	Fair    bool          // each waiter has its own place in the queue, as with WithFair
	TTL     time.Duration // the TTL of the even keys; the odd keys have twice that TTL
	Hold    time.Duration // how long a lease is held, on average
	Think   time.Duration // the time between two waits, on average
	Long    float64       // probability of a hold of up to three TTL
	Cancel  float64       // probability that a wait is given up
	NoWait  float64       // probability that a caller does not wait for a busy key
	Once    float64       // probability of a lease that is never renewed
	Extend  float64       // probability that a lease is extended
	Drift   float64       // the largest drift of a process's clock
	MaxSkew time.Duration // the leases end earlier by this time, because a server with another clock may take over

	Patience     time.Duration // the time after which a call is given up
	Tail         float64       // probability of a slow packet
	Zombie       float64       // probability of a very slow request
	LostRequest  float64
	LostReply    float64
	Refused      float64
	MessageLost  float64
	MessageLate  float64
	MessageTwice float64
	Faults       []Fault

	Ordered    bool          // waiters must get the lease in the order in which they came
	MaxIdle    time.Duration // the longest time for which a key with waiters may be free; 0: any time
	MaxWait    time.Duration // the longest time for which a caller may wait; 0: any time
	ClockSteps bool          // the server's clock steps while it is up, so leases may overlap
}

// base returns a scenario with a name and the common settings: four processes with three workers
// each, two keys, and a network without faults.
func base(name string) Scenario {
	return Scenario{
		Name: name, Length: 20 * time.Second, Processes: 4, Workers: 3, Keys: 2,
		TTL: 600 * time.Millisecond, Hold: 4 * time.Millisecond, Think: 10 * time.Millisecond,
		Cancel: 0.05, NoWait: 0.02, Once: 0.05, Extend: 0.02, Drift: 0.01,
		Patience: 250 * time.Millisecond,
	}
}

// rough returns a copy of the scenario whose network has all kinds of faults.
func (s Scenario) rough() Scenario {
	s.Tail, s.Zombie = 0.02, 0.003
	s.LostRequest, s.LostReply, s.Refused = 0.005, 0.01, 0.005
	s.MessageLost, s.MessageLate, s.MessageTwice = 0.02, 0.02, 0.02
	s.Long = 0.01
	s.Faults = append(s.Faults,
		Fault{Kind: Cut, Every: 3 * time.Second}, Fault{Kind: Deaf, Every: 5 * time.Second}, Fault{Kind: Mute, Every: 8 * time.Second})
	return s
}

func (s Scenario) fair() Scenario {
	s.Name += "-fair"
	s.Fair = true
	return s
}

func (s Scenario) withFaults(faults ...Fault) Scenario {
	s.Faults = append(slices.Clip(s.Faults), faults...)
	return s
}

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	calm := base("calm")
	calm.Ordered, calm.MaxIdle = true, 20*time.Millisecond
	calm.Once = 0

	kills := base("kills").withFaults(Fault{Kind: Kill, Every: 700 * time.Millisecond})
	kills.Ordered, kills.MaxIdle = true, 5*time.Second

	rough := base("rough").rough()
	slow := base("slow").rough()
	slow.TTL, slow.Hold, slow.Think, slow.Workers = 4*time.Second, 200*time.Millisecond, 400*time.Millisecond, 2
	slow.Length, slow.Once, slow.Long = time.Minute, 0.2, 0.1

	pauses := base("pauses").rough().withFaults(Fault{Kind: Pause, Every: 600 * time.Millisecond, For: 3 * time.Second},
		Fault{Kind: PauseOwner, Every: 2 * time.Second, For: 4 * time.Second},
		Fault{Kind: Kill, Every: 2 * time.Second}, Fault{Kind: Crash, Every: 4 * time.Second})

	foreign := base("foreign").rough()
	foreign.Foreign = 2

	full := base("full").rough().withFaults(Fault{Kind: Full, Every: 2 * time.Second, For: 2 * time.Second},
		Fault{Kind: Kill, Every: 500 * time.Millisecond})

	forget := base("forget").rough().withFaults(Fault{Kind: Forget, Every: 3 * time.Second, For: time.Second})
	steps := base("steps").rough().withFaults(Fault{Kind: StepForward, Every: 3 * time.Second, For: 3 * time.Second},
		Fault{Kind: StepBack, Every: 3 * time.Second, For: 2 * time.Second})
	steps.ClockSteps = true
	move := base("move").rough().withFaults(Fault{Kind: Move, Every: 2 * time.Second, For: 150 * time.Millisecond})

	var all []Scenario
	for _, s := range []Scenario{calm, kills, rough, slow, pauses, foreign, full, forget, steps, move} {
		all = append(all, s, s.fair())
	}
	return append(all, special()...)
}

// special returns the scenarios that test one particular danger each.
func special() []Scenario {
	extended := base("extended")
	extended.Patience, extended.Zombie, extended.Extend, extended.Long = 100*time.Millisecond, 0.1, 0.8, 0.5

	deaf := base("deaf").withFaults(Fault{Kind: Deaf, Every: 3 * time.Second})
	deaf.Keys, deaf.Workers, deaf.Think, deaf.Cancel, deaf.MaxWait = 1, 4, 2*time.Millisecond, 0, 7*time.Second

	stopped := base("stopped").withFaults(Fault{Kind: PauseOwner, Every: 2 * time.Second, For: 15 * time.Second}).fair()
	stopped.Keys, stopped.Processes, stopped.Workers, stopped.TTL, stopped.Hold = 1, 3, 6, 3*time.Second, 60*time.Millisecond
	stopped.Cancel, stopped.Once, stopped.Extend, stopped.Drift, stopped.Length = 0, 0, 0, 0, time.Minute
	stopped.MaxIdle = mostClaim + 100*time.Millisecond

	dead := base("dead").withFaults(Fault{Kind: KillOwner, Every: 3 * time.Second})
	dead.Keys, dead.TTL, dead.Hold, dead.Once, dead.Extend, dead.Cancel = 1, time.Second, 500*time.Millisecond, 0, 0, 0
	dead.Length, dead.Ordered, dead.MaxIdle = time.Minute, true, dead.TTL+20*time.Millisecond
	// Another waiter of the dead holder's process may be the first in the queue. Then the
	// server drops this waiter first, and the next process gets the key a little later.
	deadFair := dead.fair()
	deadFair.MaxIdle += 100 * time.Millisecond

	// In this scenario, leases are held to their end, messages come late, and waits are so long
	// that the clocks drift apart.
	patient := base("patient").fair()
	patient.Keys, patient.Workers, patient.TTL, patient.Once, patient.Long = 1, 2, 3*time.Second, 1, 1
	patient.Length, patient.MessageLate, patient.Tail, patient.Cancel = 5*time.Minute, 0.5, 0.1, 0

	stamped := base("stamped").withFaults(Fault{Kind: Move, Every: time.Second, For: 150 * time.Millisecond})
	stamped.Once, stamped.Long, stamped.Tail, stamped.Keys, stamped.LostRequest = 0.9, 0.9, 0.5, 1, 0.2
	stamped.Length, stamped.Drift, stamped.Cancel, stamped.Workers = time.Minute, 0, 0, 2

	fickle := base("fickle")
	fickle.Cancel, fickle.Tail, fickle.Hold, fickle.Think = 0.8, 0.3, 8*time.Millisecond, 4*time.Millisecond
	// In this scenario, holders release long before the end of their leases. So a waiter must not
	// sleep until the end of a lease only because a message has named this end.
	hinted := base("hinted")
	hinted.Keys, hinted.TTL, hinted.Once, hinted.Hold, hinted.MessageLost = 1, 40*time.Second, 0.5, 150*time.Millisecond, 0.05
	hinted.Length, hinted.Cancel, hinted.Extend, hinted.MaxIdle = 2*time.Minute, 0, 0, 11*time.Second
	stalls := base("stalls").withFaults(Fault{Kind: Stall, Every: time.Second, For: 600 * time.Millisecond})
	stalls.Keys, stalls.Processes, stalls.Workers, stalls.Think, stalls.TTL, stalls.MaxIdle = 1, 2, 3, 5*time.Millisecond, 3*time.Second, time.Second
	stalls.Length, stalls.Cancel, stalls.NoWait, stalls.Once = time.Minute, 0, 0, 0

	return []Scenario{stalls, hinted, extended, deaf, stopped, dead, deadFair, patient, stamped, fickle}
}
