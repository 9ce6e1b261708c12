// Package worker runs jobs: it claims them, hands them to their handlers, keeps
// their leases alive and writes how they ended. A job passes through the files in
// this order:
//
//	claim.go   one goroutine claims for all lanes, as much as will start soon
//	run.go     a lane's workers take jobs from its buffer and run them
//	lease.go   one goroutine renews the leases and cancels runs that lost theirs
//	finish.go  one goroutine writes the outcomes in batches
//
// All state that these goroutines share is guarded by Pool.mu, which is never
// held during a call of the store, a handler or the logger.
package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

// Store is the part of a store that running jobs takes.
type Store interface {
	store.Claimer
	store.Leaser
	store.Finisher
	// KnownKinds is that of store.Registrar.
	KnownKinds(ctx context.Context) ([]string, error)
}

// Registry knows the handlers. It may change while the pool runs; a job is run
// by what was registered when it was claimed.
type Registry interface {
	Lookup(kind string) (job.Handler, job.Policy, bool)
	// Kinds lists the kinds that Lookup finds, sorted.
	Kinds() []string
}

// Lane is a queue and how many of its jobs run at the same time.
type Lane struct {
	Queue   string
	Workers int // >= 1
}

// Config says how a pool works. Durations that are 0 get the default.
type Config struct {
	Lanes    []Lane // at least one, each queue once
	Handlers Registry
	Owner    int64 // of this process, see store.Registrar; not 0

	Lease            time.Duration // how long claimed jobs are ours without a heartbeat; 30s
	Heartbeat        time.Duration // how often leases are renewed; a third of Lease at most; 10s
	PollInterval     time.Duration // how often an idle lane looks for jobs; 45ms
	ShutdownTimeout  time.Duration // how long running jobs may go on after the stop; 30s
	CancelGrace      time.Duration // how long a cancelled handler may take to return; 5s
	UnknownKindGrace time.Duration // age up to which a job of a kind that no daemon knows is put back; 1m

	MaxJobs       int     // stop by itself after so many started jobs; 0: never
	MaxJobsSpread float64 // share of MaxJobs, 0 to 1, by which a random part is taken off
	Drain         bool    // stop by itself when no due job is left

	Logger  *zap.Logger // nil: no log
	Metrics Metrics     // nil: none
}

// setDefaults fills in what is 0 and reports everything that can't be.
func (c *Config) setDefaults() error {
	var errs []error
	bad := func(field, rule string) { errs = append(errs, fmt.Errorf("%s %s", field, rule)) }
	for _, d := range []struct {
		field string
		value *time.Duration
		def   time.Duration
	}{
		{"lease", &c.Lease, 30 * time.Second},
		{"heartbeat", &c.Heartbeat, 10 * time.Second},
		{"poll interval", &c.PollInterval, 45 * time.Millisecond},
		{"shutdown timeout", &c.ShutdownTimeout, 30 * time.Second},
		{"cancel grace", &c.CancelGrace, 5 * time.Second},
		{"unknown kind grace", &c.UnknownKindGrace, time.Minute},
	} {
		if *d.value < 0 {
			bad(d.field, "must not be negative")
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.Lease < 3*c.Heartbeat {
		bad("lease", fmt.Sprintf("of %s must be at least 3 heartbeats of %s", c.Lease, c.Heartbeat))
	}
	if len(c.Lanes) == 0 {
		bad("lanes", "must not be empty")
	}
	seen := map[string]bool{}
	for _, l := range c.Lanes {
		if l.Queue == "" || seen[l.Queue] {
			bad("lanes", fmt.Sprintf("must name each queue once (got %q)", l.Queue))
		}
		if l.Workers < 1 {
			bad("lanes", fmt.Sprintf("must have at least one worker (queue %q has %d)", l.Queue, l.Workers))
		}
		seen[l.Queue] = true
	}
	if c.Handlers == nil {
		bad("handlers", "must be set")
	}
	if c.Owner == 0 {
		bad("owner", "must not be 0")
	}
	if c.MaxJobs < 0 {
		bad("max jobs", "must not be negative")
	}
	if c.MaxJobsSpread < 0 || c.MaxJobsSpread > 1 {
		bad("max jobs spread", "must be between 0 and 1")
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Metrics == nil {
		c.Metrics = NopMetrics{}
	}
	return errors.Join(errs...)
}

// Reason is why Run returned.
type Reason string

// The reasons.
const (
	ReasonAsked   Reason = "asked to stop"
	ReasonDrained Reason = "no due job left"
	ReasonMaxJobs Reason = "job limit reached"
)

// Pool runs the jobs of some queues.
type Pool struct {
	cfg   Config
	store Store
	log   *zap.Logger
	max   int             // jobs to start, 0: no limit
	base  context.Context // of runs and of writes: has Run's values, never ends

	stop      chan Reason   // from inside: drained, limit reached
	hurry     chan struct{} // closed by Hurry
	hurryOnce sync.Once
	wakeClaim chan struct{}
	wakeOut   chan struct{}
	exited    chan struct{} // closed when the last worker has ended

	claimer  claimer
	finisher finisher

	mu       sync.Mutex
	lanes    []*lane
	byQueue  map[string]*lane
	slots    []*slot
	leases   map[int64]*lease
	open     int // claimed jobs whose end is neither written nor given up
	started  int
	live     int  // workers that have not ended
	stopping bool // nothing is started any more
	gone     bool // handlers that still run are abandoned
	out      outbox
	state    state
}

// New makes a pool. The error names everything that is wrong with cfg.
func New(cfg Config, s Store) (*Pool, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("worker pool: %w", err)
	}
	p := &Pool{
		cfg:       cfg,
		store:     s,
		log:       cfg.Logger,
		max:       cfg.MaxJobs,
		stop:      make(chan Reason, 1),
		hurry:     make(chan struct{}),
		wakeClaim: make(chan struct{}, 1),
		wakeOut:   make(chan struct{}, 1),
		exited:    make(chan struct{}),
		byQueue:   map[string]*lane{},
		leases:    map[int64]*lease{},
	}
	if p.max > 0 {
		p.max = max(1, p.max-int(rand.Float64()*cfg.MaxJobsSpread*float64(p.max)))
	}
	for _, c := range cfg.Lanes {
		l := &lane{Lane: c, ready: sync.NewCond(&p.mu), kinds: map[string]*kind{}}
		p.lanes = append(p.lanes, l)
		p.byQueue[c.Queue] = l
		for range c.Workers {
			p.slots = append(p.slots, &slot{lane: l})
		}
	}
	return p, nil
}

// Run runs jobs until ctx ends, the queues are drained or the job limit is
// reached, as configured. Then it stops in order: nothing more is claimed, what
// has not started goes back at once, running jobs get ShutdownTimeout, then a
// cancel with ErrShutdown and CancelGrace, and all outcomes are written. Only
// handlers that ignore their cancel outlive it; their ids are logged, and their
// jobs come back when their lease ends. Run may be called once.
func (p *Pool) Run(ctx context.Context) Reason {
	p.base = context.WithoutCancel(ctx)
	claimCtx, stopClaims := context.WithCancel(ctx)
	defer stopClaims()
	leaseCtx, stopLeases := context.WithCancel(p.base)
	defer stopLeases()
	var claimer, finisher, leaser sync.WaitGroup
	p.live = len(p.slots)
	for _, s := range p.slots {
		go p.work(s)
	}
	leaser.Go(func() { p.leaseLoop(leaseCtx) })
	finisher.Go(p.finishLoop)
	claimer.Go(func() { p.claimLoop(claimCtx) })

	var reason Reason
	select {
	case <-ctx.Done():
		reason = ReasonAsked
	case reason = <-p.stop:
	}
	p.log.Info("stopping", zap.String("reason", string(reason)))
	p.stopStarting()
	stopClaims()
	claimer.Wait()
	p.stopRunning()
	p.closeOutbox()
	finisher.Wait()
	stopLeases()
	leaser.Wait()
	return reason
}

// Hurry makes a stop skip the wait for running jobs: they are cancelled at once,
// and a database that is away is not waited for. Before the stop it only shortens the one to come.
func (p *Pool) Hurry() { p.hurryOnce.Do(func() { close(p.hurry) }) }

// stopStarting hands back what has not started.
func (p *Pool) stopStarting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
	for _, l := range p.lanes {
		p.release(l)
		l.ready.Broadcast()
	}
}

// stopRunning waits for what runs, in the steps that Run describes.
func (p *Pool) stopRunning() {
	if p.waitExited(p.cfg.ShutdownTimeout, p.hurry) {
		return
	}
	p.mu.Lock()
	for _, s := range p.slots {
		s.interrupt(p, job.ErrShutdown)
	}
	p.mu.Unlock()
	if p.waitExited(p.cfg.CancelGrace, nil) {
		return
	}
	p.mu.Lock()
	p.gone = true
	var left []*run
	for _, s := range p.slots {
		if r := s.run; r != nil {
			left = append(left, r)
			p.forget(r, true)
		}
	}
	p.mu.Unlock()
	for _, r := range left {
		p.log.Error("handler ignores its cancel and is abandoned; its job comes back when its lease ends", r.fields()...)
		r.kind.rec.Ended(Ending{Outcome: Abandoned})
	}
}

// waitExited waits until all workers have ended, but not longer than d or past skip.
func (p *Pool) waitExited(d time.Duration, skip <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.exited:
		return true
	case <-t.C:
	case <-skip:
	}
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// stopFor asks Run to stop; the first reason holds.
func (p *Pool) stopFor(r Reason) {
	select {
	case p.stop <- r:
	default:
	}
}

// wake gives a sleeping loop a turn.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *Pool) outage(begun, over string) loop.Outage {
	return loop.Outage{Log: p.log, Begun: begun, Over: over}
}
