package worker

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

const (
	prefetch      = 100 * time.Millisecond // work that is claimed ahead
	maxBuffer     = 2 * store.MaxClaim     // jobs of a lane that wait for a worker; half of it is asked for at a time
	maxBufferSize = 8 << 20                // bytes of payload that wait for a worker
	maxUnwritten  = 2 * maxFinish          // outcomes in the outbox beyond which nothing is claimed
	staleBuffer   = time.Second            // after which jobs that still wait go back
	maxPoll       = time.Second            // longest interval of polls on a slow server
	knownFor      = 3 * time.Second        // how long the list of known kinds is used
	unknownDelay  = 5 * time.Second        // before a job of an unknown kind is looked at again
)

// lane is a queue with its workers and the jobs that wait for them. Guarded by
// Pool.mu, except where it says otherwise.
type lane struct {
	Lane
	ready   *sync.Cond // a job is in the buffer, or the pool stops
	buffer  fifo
	running int
	ended   int // runs, ever
	more    bool
	askAt   time.Time // not asked before

	kinds map[string]*kind // the claimer's own

	// How many jobs end a second, and how large they are, as last seen by the claimer.
	rate     float64
	size     int
	measured time.Time
	counted  int
}

// target is how many jobs to hold ready: as many as end while the next claim is
// made. It is 0 for jobs so slow that a free worker may as well ask itself.
func (l *lane) target(claimTook time.Duration) int {
	n := l.rate * max(prefetch, 2*claimTook).Seconds()
	n = min(n, maxBuffer, float64(maxBufferSize/max(l.size, 1)))
	return int(n)
}

// want is how many jobs to ask for now: nothing while half of the target is there.
func (l *lane) want(claimTook time.Duration) int {
	free, have, target := l.Workers-l.running, l.buffer.len(), l.target(claimTook)
	if free <= have && 2*have >= target {
		return 0
	}
	return min(free+target-have, store.MaxClaim)
}

// measure updates the rate. It follows the last tenth of a second, so that a
// lane whose workers got stuck in long jobs soon asks for nothing ahead.
func (l *lane) measure(now time.Time) {
	dt := now.Sub(l.measured).Seconds()
	if dt <= 0 {
		return
	}
	share := dt / (dt + prefetch.Seconds())
	l.rate += share * (float64(l.ended-l.counted)/dt - l.rate)
	l.measured, l.counted = now, l.ended
}

// kind is what the pool keeps for a kind on a lane.
type kind struct {
	rec   Recorder
	count store.Count // of ended runs not yet sent; the finisher's own
}

// anyUnknown stands for all kinds without a handler, which are not
// ours to count: producers can invent any number of them.
const anyUnknown = "(unknown)"

// claimer is what the claim loop keeps for itself.
type claimer struct {
	took    time.Duration // of the last claim that gave jobs
	empty   time.Duration // of the last one that gave none
	known   []string      // kinds that live daemons have handlers for
	unsure  bool          // it could not be read
	knownAt time.Time
}

// claimLoop claims jobs until ctx ends.
func (p *Pool) claimLoop(ctx context.Context) {
	outage := p.outage("can't claim jobs, waiting for the database", "claiming jobs again")
	backoff := loop.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil {
		wants, wait, drained := p.wants(time.Now())
		if len(wants) == 0 {
			loop.Sleep(ctx, wait, p.wakeClaim)
			continue
		}
		began := time.Now()
		got, err := p.store.Claim(ctx, store.ClaimRequest{Owner: p.cfg.Owner, Lease: p.cfg.Lease, Wants: wants})
		took := time.Since(began)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			outage.Failed(err)
			p.cfg.Metrics.Count(ClaimFailed, 1)
			p.noteClaim(err)
			loop.Sleep(ctx, backoff.Next(), nil)
			continue
		}
		outage.OK()
		backoff.Reset()
		p.noteClaim(nil)
		p.cfg.Metrics.Claimed(len(got.Jobs), took)
		if drained && len(got.Jobs) == 0 && !got.More {
			p.stopFor(ReasonDrained)
			return
		}
		p.schedule(wants, got, took)
		p.admit(ctx, got, began)
	}
}

// wants says what to ask for now, or how long to wait when that is nothing.
// drained says that an empty answer means that no due job is left.
func (p *Pool) wants(now time.Time) (wants []store.Want, wait time.Duration, drained bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.claimTurn = now
	wait = p.cfg.PollInterval
	if len(p.out.writes) >= maxUnwritten {
		return nil, wait, false // the finisher wakes us
	}
	left := math.MaxInt
	if p.max > 0 {
		left = p.max - p.started
		for _, l := range p.lanes {
			left -= l.buffer.len()
		}
	}
	drained = p.cfg.Drain && p.open == 0
	for _, l := range p.lanes {
		l.measure(now)
		if r := l.buffer.first(); r != nil && l.running == l.Workers && now.Sub(r.arrived) > staleBuffer {
			p.release(l) // another process may have a free worker
		}
		n := min(l.want(p.claimer.took), left)
		if n <= 0 {
			drained = false
			continue
		}
		// Lanes that are due soon come along, so that all are asked together.
		if due := l.askAt.Sub(now); due > p.cfg.PollInterval/2 && !drained {
			wait = min(wait, due)
			continue
		}
		wants = append(wants, store.Want{Queue: l.Queue, Limit: n})
		left -= n
	}
	return wants, wait, drained
}

// schedule says when the lanes that were asked may be asked again: at once when
// there is more, else after the poll interval, and on a slow server so late that
// empty polls take a tenth of the time at most. One slow poll alone is an accident.
func (p *Pool) schedule(wants []store.Want, got store.Claimed, took time.Duration) {
	c := &p.claimer
	pause := loop.Jitter(p.cfg.PollInterval, 0.1)
	if len(got.Jobs) > 0 {
		c.took = took
	} else {
		pause = max(pause, min(10*min(took, c.empty), maxPoll))
		c.empty = took
	}
	next := time.Now().Add(pause)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range wants {
		l := p.byQueue[w.Queue]
		some := len(wants) == 1 || slices.ContainsFunc(got.Jobs, func(j *job.Job) bool { return j.Queue == w.Queue })
		l.more = got.More && some
		l.askAt = next
		if l.more {
			l.askAt = time.Time{}
		}
	}
}

// admit puts claimed jobs into the buffers of their lanes, and the ones that
// can't be run at all into the outbox.
func (p *Pool) admit(ctx context.Context, got store.Claimed, began time.Time) {
	if len(got.Jobs) == 0 {
		return
	}
	ls := &lease{token: got.Token, until: began.Add(p.provable()), claimed: began, left: len(got.Jobs)}
	runs := make([]*run, 0, len(got.Jobs))
	var refused outbox
	arrived := time.Now()
	for _, j := range got.Jobs {
		r := &run{job: j, lease: ls, lane: p.byQueue[j.Queue], arrived: arrived}
		var known bool
		if r.lane == nil {
			// Of a queue that was not asked for, which no store should return.
			r.lane = p.lanes[0]
			r.kind = p.kindOf(r.lane, j.Kind, false)
			refused.add(job.Release(j), r)
			continue
		}
		r.handler, r.policy, known = p.cfg.Handlers.Lookup(j.Kind)
		r.kind = p.kindOf(r.lane, j.Kind, known)
		switch {
		case j.Bad != "":
			refused.add(job.Refuse(j, job.ReasonBadRow, j.Bad), r)
		case !known:
			refused.add(p.unknown(ctx, r), r)
		case j.Attempt > j.AttemptLimit(r.policy):
			refused.add(job.Refuse(j, job.ReasonMaxAttempts,
				fmt.Sprintf("attempt %d of at most %d is not run", j.Attempt, j.AttemptLimit(r.policy))), r)
		default:
			r.setContext(p.base)
			runs = append(runs, r)
		}
	}
	size := 0
	for _, j := range got.Jobs {
		size += len(j.Payload)
	}
	size /= len(got.Jobs)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[ls.token] = ls
	p.open += len(got.Jobs)
	for i, r := range refused.runs {
		p.put(refused.writes[i], r)
	}
	for _, r := range runs {
		if p.stopping {
			p.put(job.Release(r.job), r)
			continue
		}
		r.lane.size = size
		r.lane.buffer.push(r)
		r.lane.ready.Signal()
	}
}

func (p *Pool) kindOf(l *lane, name string, known bool) *kind {
	if !known {
		name = anyUnknown
	}
	k := l.kinds[name]
	if k == nil {
		k = &kind{rec: p.cfg.Metrics.Kind(l.Queue, name), count: store.Count{Queue: l.Queue, Kind: name}}
		l.kinds[name] = k
	}
	return k
}

// unknown decides on a job of a kind without a handler here. While a live daemon
// has one, or the job is young enough for that daemon to be on its way, it goes
// back uncounted.
func (p *Pool) unknown(ctx context.Context, r *run) job.Write {
	back := job.Postpone(r.job, loop.Jitter(unknownDelay, 0.2))
	if r.now(r.arrived).Sub(r.job.CreatedAt) < p.cfg.UnknownKindGrace {
		return back
	}
	c := &p.claimer
	if c.knownAt.IsZero() || time.Since(c.knownAt) > knownFor {
		known, err := p.store.KnownKinds(ctx)
		if err != nil {
			p.log.Warn("can't tell which kinds other daemons have handlers for", zap.Error(err))
		}
		c.known, c.unsure, c.knownAt = known, err != nil, time.Now()
	}
	if c.unsure || slices.Contains(c.known, r.job.Kind) {
		return back
	}
	known := slices.Concat(c.known, p.cfg.Handlers.Kinds())
	slices.Sort(known)
	return job.Refuse(r.job, job.ReasonUnknownKind,
		fmt.Sprintf("no daemon has a handler for kind %q; known kinds: %s", r.job.Kind, strings.Join(slices.Compact(known), ", ")))
}

// release hands back all that waits in l. p.mu is held.
func (p *Pool) release(l *lane) {
	for r := l.buffer.pop(); r != nil; r = l.buffer.pop() {
		p.put(job.Release(r.job), r)
	}
}

// fifo is a queue of runs.
type fifo struct {
	runs []*run
	head int
}

func (f *fifo) len() int { return len(f.runs) - f.head }

func (f *fifo) first() *run {
	if f.len() == 0 {
		return nil
	}
	return f.runs[f.head]
}

func (f *fifo) push(r *run) {
	if f.head == len(f.runs) {
		f.runs, f.head = f.runs[:0], 0
	} else if f.head > maxBuffer {
		n := copy(f.runs, f.runs[f.head:])
		clear(f.runs[n:])
		f.runs, f.head = f.runs[:n], 0
	}
	f.runs = append(f.runs, r)
}

// pop takes the first run out, nil when there is none.
func (f *fifo) pop() *run {
	if f.len() == 0 {
		return nil
	}
	r := f.runs[f.head]
	f.runs[f.head] = nil
	f.head++
	return r
}
