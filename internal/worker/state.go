package worker

import (
	"time"

	"queued/internal/store"
	"queued/job"
)

// Outcome says how a claimed job ended, for metrics.
type Outcome uint8

// The outcomes.
const (
	Done       Outcome = iota
	Failed             // a failed attempt that will be repeated
	Dead               // became a dead letter
	NotBuried          // should have become one, but the store refused it
	Postponed          // put back uncounted until later
	Released           // handed back as it was
	LeaseLost          // nothing was written, the job was not ours any more
	Unrecorded         // the outcome could not be written
	Abandoned          // the handler ignored its cancel until the pool had stopped
	numOutcomes
)

var outcomeNames = [numOutcomes]string{"done", "failed", "dead", "not_buried", "postponed", "released", "lease_lost", "unrecorded", "abandoned"}

// String is the outcome as a label.
func (o Outcome) String() string { return outcomeNames[o] }

// Outcomes lists all of them.
func Outcomes() []Outcome {
	all := make([]Outcome, numOutcomes)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

// Ending is how one claimed job ended.
type Ending struct {
	Outcome Outcome
	Started bool          // whether its handler was called, and Wait and Took mean something
	Wait    time.Duration // from due to started
	Took    time.Duration // the handler
}

func ending(w *job.Write, r *run, fate store.Fate) Ending {
	e := Ending{Started: !r.started.IsZero(), Took: r.took}
	if e.Started {
		e.Wait = max(0, r.now(r.started).Sub(r.job.AvailableAt))
	}
	switch {
	case fate == store.LeaseLost:
		e.Outcome = LeaseLost
	case fate == store.NotBuried:
		e.Outcome = NotBuried
	case w.To == job.Done:
		e.Outcome = Done
	case w.To == job.Dead:
		e.Outcome = Dead
	case w.Failed():
		e.Outcome = Failed
	case w.KeepDue:
		e.Outcome = Released
	default:
		e.Outcome = Postponed
	}
	return e
}

// Event is something that happens now and then, to be counted.
type Event uint8

// The events.
const (
	ClaimFailed    Event = iota // a claim returned an error
	RenewFailed                 // a renewal or verification of leases returned an error
	FinishFailed                // a write of outcomes returned an error
	HandlerOverdue              // a handler went on past its cancel and the grace
	numEvents
)

var eventNames = [numEvents]string{"claim_failed", "renew_failed", "finish_failed", "handler_overdue"}

// String is the event as a label.
func (e Event) String() string { return eventNames[e] }

// Events lists all of them.
func Events() []Event {
	all := make([]Event, numEvents)
	for i := range all {
		all[i] = Event(i)
	}
	return all
}

// Metrics is told what the pool does. Its methods and those of its recorders are
// called from several goroutines at once and must neither block nor be slow.
type Metrics interface {
	// Kind returns the recorder for a kind on a queue. The pool asks once and
	// keeps it. All kinds without a handler come as one, "(unknown)".
	Kind(queue, kind string) Recorder
	// Claimed: a claim was answered with so many jobs, often 0.
	Claimed(jobs int, took time.Duration)
	// Finished: so many outcomes were written in one call.
	Finished(writes int, took time.Duration)
	// Count adds n to an event's counter.
	Count(e Event, n int)
}

// Recorder is told about each job of one kind, once its end is written or given up.
type Recorder interface {
	Ended(e Ending)
}

// NopMetrics is Metrics and Recorder that keep nothing.
type NopMetrics struct{}

// Kind returns m.
func (m NopMetrics) Kind(string, string) Recorder { return m }

// Claimed does nothing.
func (NopMetrics) Claimed(int, time.Duration) {}

// Finished does nothing.
func (NopMetrics) Finished(int, time.Duration) {}

// Count does nothing.
func (NopMetrics) Count(Event, int) {}

// Ended does nothing.
func (NopMetrics) Ended(Ending) {}

// state is what only State reads. Guarded by Pool.mu.
type state struct {
	lastPoll  time.Time
	down      error
	claimTurn time.Time
	leaseTurn time.Time
	overdue   int
}

// noteClaim notes how the last claim ended.
func (p *Pool) noteClaim(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.down = err
	if err == nil {
		p.state.lastPoll = time.Now()
	}
}

// State is a pool at one moment.
type State struct {
	LastPoll  time.Time     // last successful claim, empty ones included; zero: none yet
	Down      error         // of the last claim; nil: it succeeded
	ClaimTurn time.Time     // when the claim loop last turned; a database that is away does not stop it
	LeaseTurn time.Time     // the same of the lease loop
	Unwritten int           // outcomes waiting to be written
	Overdue   int           // handlers that run on past their cancel and the grace
	OldestRun time.Duration // 0: nothing runs
	Lanes     []LaneState
}

// LaneState is a lane at one moment.
type LaneState struct {
	Lane
	Running  int
	Buffered int // claimed and waiting for a worker
}

// State returns what the pool is doing.
func (p *Pool) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := State{
		LastPoll:  p.state.lastPoll,
		Down:      p.state.down,
		ClaimTurn: p.state.claimTurn,
		LeaseTurn: p.state.leaseTurn,
		Unwritten: len(p.out.writes),
		Overdue:   p.state.overdue,
	}
	now := time.Now()
	for _, sl := range p.slots {
		if sl.run != nil {
			s.OldestRun = max(s.OldestRun, now.Sub(sl.run.started))
		}
	}
	for _, l := range p.lanes {
		s.Lanes = append(s.Lanes, LaneState{Lane: l.Lane, Running: l.running, Buffered: l.buffer.len()})
	}
	return s
}
