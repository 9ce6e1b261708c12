package worker

import (
	"context"
	"slices"
	"time"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

// lease is the hold on the jobs of one claim. Guarded by Pool.mu.
type lease struct {
	token   int64
	claimed time.Time // before the claim was sent
	until   time.Time // our proof ends here, by the monotonic clock
	left    int       // jobs whose end is neither written nor given up
	overdue int       // of these, runs whose handler ignores its cancel
	keep    bool      // a job was given up unwritten: the row stays, for the reaper to find the job
}

// margin is the part of a lease that is not relied on: handlers need time to
// notice a cancel, and clocks run at different rates.
func (p *Pool) margin() time.Duration { return p.cfg.Lease / 10 }

// provable is how long after the start of a claim or renewal its lease is
// surely ours.
func (p *Pool) provable() time.Duration { return p.cfg.Lease - p.margin() }

// forget takes note that r has come to its end; unwritten says that its row
// still runs under the lease. p.mu is held.
func (p *Pool) forget(r *run, unwritten bool) {
	ls := r.lease
	ls.keep = ls.keep || unwritten
	p.open--
	if ls.left--; ls.left > 0 {
		return
	}
	delete(p.leases, ls.token)
	if !ls.keep {
		p.out.settled = append(p.out.settled, ls.token)
		wake(p.wakeOut)
	}
}

// leaseLoop renews the leases until ctx ends, and cancels what lost its lease.
func (p *Pool) leaseLoop(ctx context.Context) {
	outage := p.outage("can't renew leases, waiting for the database", "renewing leases again")
	tick := p.cfg.Heartbeat / 5
	next := time.Now().Add(p.cfg.Heartbeat)
	for {
		now := time.Now()
		p.mu.Lock()
		p.state.leaseTurn = now
		first := p.expire(now)
		p.mu.Unlock()
		if !now.Before(next) {
			// The call must not outlast the first proof that ends.
			call, cancel := context.WithDeadline(ctx, first)
			err := p.heartbeat(call)
			cancel()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				outage.Failed(err)
				p.cfg.Metrics.Count(RenewFailed, 1)
				next = time.Now().Add(tick)
			default:
				outage.OK()
				next = now.Add(p.cfg.Heartbeat)
			}
			continue
		}
		if !loop.Sleep(ctx, min(next.Sub(now), first.Sub(now), tick), nil) {
			return
		}
	}
}

// expire ends what runs or waits under leases that can't be proven any more, and
// returns when the next one ends. p.mu is held.
func (p *Pool) expire(now time.Time) (first time.Time) {
	first = now.Add(p.cfg.Lease)
	for _, ls := range p.leases {
		if now.Before(ls.until) {
			if ls.until.Before(first) {
				first = ls.until
			}
			continue
		}
		ls.keep = true // what is running now ends without a write
		p.drop(ls)
	}
	return first
}

// drop cancels the runs of a lost lease. Its jobs that wait go back when their
// turn comes. p.mu is held.
func (p *Pool) drop(ls *lease) {
	for _, s := range p.slots {
		if s.run != nil && s.run.lease == ls {
			s.interrupt(p, job.ErrLeaseLost)
		}
	}
}

// heartbeat renews all leases and asks whether the jobs that have been running
// for longer than a heartbeat are still ours. A lease that only
// handlers hold which ignore their cancel is left to run out.
func (p *Pool) heartbeat(ctx context.Context) error {
	now := time.Now()
	var tokens []int64
	p.mu.Lock()
	for _, ls := range p.leases {
		if now.Before(ls.until) && ls.left > ls.overdue {
			tokens = append(tokens, ls.token)
		}
	}
	p.mu.Unlock()
	if len(tokens) == 0 {
		return nil
	}
	lost, err := p.store.Renew(ctx, p.cfg.Owner, p.cfg.Lease, tokens)
	if err != nil {
		return err
	}
	var held []store.Held
	p.mu.Lock()
	for _, t := range tokens {
		ls := p.leases[t]
		switch {
		case ls == nil: // all its jobs have ended meanwhile
		case slices.Contains(lost, t):
			ls.until = now
			p.drop(ls)
		default:
			ls.until = now.Add(p.provable())
		}
	}
	for _, s := range p.slots {
		if r := s.run; r != nil && r.cut.IsZero() && now.Sub(r.started) >= p.cfg.Heartbeat {
			held = append(held, store.Held{ID: r.job.ID, Token: r.job.Token})
		}
	}
	p.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	changed, err := p.store.Verify(ctx, held)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.slots {
		if r := s.run; r != nil && slices.Contains(changed, store.Held{ID: r.job.ID, Token: r.job.Token}) {
			s.interrupt(p, job.ErrCancelled)
		}
	}
	return nil
}
