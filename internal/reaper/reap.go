package reaper

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

const (
	maxLeases   = 100    // leases of a round
	sweepSpan   = 10_000 // rows of a sweep's step
	maxSuspects = 100    // rows looked at again in a round, and written in one batch
)

// Reaping is what to write for an expired lease.
type Reaping struct {
	Token  int64
	Writes []job.Write
}

// Plan decides on the jobs of expired leases: back with backoff, or a dead
// letter after the last attempt. It is a pure function of its arguments; policy gives the
// one that applies to a kind.
func Plan(leases []store.Lease, policy func(kind string) job.Policy, rnd job.Rand) []Reaping {
	plan := make([]Reaping, len(leases))
	for i, l := range leases {
		plan[i] = Reaping{Token: l.Token, Writes: planJobs(l.Jobs, policy, rnd)}
	}
	return plan
}

func planJobs(jobs []*job.Job, policy func(kind string) job.Policy, rnd job.Rand) []job.Write {
	writes := make([]job.Write, len(jobs))
	for i, j := range jobs {
		writes[i] = job.DecideLost(j, policy(j.Kind), rnd)
	}
	return writes
}

func (r *Reaper) policy(kind string) job.Policy {
	if _, p, ok := r.cfg.Policies.Lookup(kind); ok {
		return p
	}
	// Another daemon's kind: how often it is tried is not known here. Only a limit of
	// the row's own makes it a dead letter; else whoever knows the kind decides.
	p := r.cfg.Default
	p.MaxAttempts = job.MaxMaxAttempts
	return p
}

func (r *Reaper) reapLoop(ctx context.Context) {
	outage := loop.Outage{Log: r.cfg.Logger, Begun: "can't look for expired leases, trying again", Over: "looking for expired leases again"}
	backoff := loop.Backoff{Min: 100 * time.Millisecond, Max: r.cfg.Interval}
	for {
		again, err := r.round(ctx)
		wait := loop.Jitter(r.cfg.Interval, 0.2)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			outage.Failed(err)
			wait = backoff.Next()
		default:
			outage.OK()
			backoff.Reset()
			r.note(func(s *State) { s.Reaped = time.Now() })
			if again {
				wait = 0
			}
		}
		if !loop.Sleep(ctx, wait, nil) {
			return
		}
	}
}

// round reaps up to maxLeases leases, then looks for orphans in a part of the
// table. again says that more leases are waiting.
func (r *Reaper) round(ctx context.Context) (again bool, err error) {
	leases, err := r.store.Expired(ctx, r.cfg.Grace, maxLeases)
	if err != nil {
		return false, err
	}
	reaped := 0
	for i, p := range Plan(leases, r.policy, job.RandomJitter) {
		fates, err := r.store.Reap(ctx, p.Token, r.cfg.Grace, p.Writes)
		switch {
		case err == nil:
			reaped++
			r.reaped(ctx, p.Writes, fates, false, zap.Int64("owner", leases[i].Owner), zap.Duration("expired", leases[i].Expired))
		case errors.Is(err, job.ErrLeaseLost):
			r.cfg.Metrics.Reaped(TooLate, false, len(p.Writes))
		case passing(err) || ctx.Err() != nil:
			return false, err
		default: // the others are not to wait for this one
			r.cfg.Logger.Error("can't reap a lease", zap.Int64("token", p.Token), zap.Int("jobs", len(p.Writes)), zap.Error(err))
		}
	}
	if len(leases) == maxLeases && reaped > 0 {
		return true, nil
	}
	return false, r.sweep(ctx)
}

// sweep looks at the next part of the table for orphans: jobs that are running
// with no lease that covers them, as edits by hand leave them. A claim in progress
// may look like one for a moment, so only what is still one a lease later is written.
func (r *Reaper) sweep(ctx context.Context) error {
	found, next, err := r.store.Orphans(ctx, r.swept, sweepSpan)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, j := range found {
		h := store.Held{ID: j.ID, Token: j.Token}
		if _, ok := r.suspects[h]; !ok && len(r.suspects) < sweepSpan {
			r.suspects[h] = now
		}
	}
	r.swept = next
	if next == 0 {
		r.note(func(s *State) { s.Swept = now })
	}
	var orphans []*job.Job
	looked := 0
	for h, since := range r.suspects {
		if now.Sub(since) < r.cfg.Lease {
			continue
		}
		if looked++; looked > maxSuspects {
			break
		}
		found, _, err := r.store.Orphans(ctx, h.ID-1, 1)
		if err != nil {
			return err
		}
		delete(r.suspects, h)
		if len(found) == 1 && found[0].ID == h.ID && found[0].Token == h.Token {
			orphans = append(orphans, found[0])
		}
	}
	if len(orphans) == 0 {
		return nil
	}
	writes := planJobs(orphans, r.policy, job.RandomJitter)
	fates, err := r.store.Finish(ctx, store.Finish{Writes: writes, Owner: r.cfg.Owner})
	if err != nil {
		return err // the next sweep finds them again
	}
	r.reaped(ctx, writes, fates, true)
	return nil
}

// reaped logs and counts what became of jobs.
func (r *Reaper) reaped(ctx context.Context, writes []job.Write, fates []store.Fate, orphan bool, fields ...zap.Field) {
	jobs := map[Outcome]int{}
	var counts []store.Count
	for i, fate := range fates {
		w := &writes[i]
		o := Retried
		switch {
		case fate == store.LeaseLost:
			o = TooLate
		case fate == store.NotBuried:
			o = NotBuried
		case w.To == job.Dead:
			o = Buried
		}
		jobs[o]++
		if o == TooLate {
			continue
		}
		r.cfg.Logger.Warn("job's worker died or lost its lease", append([]zap.Field{
			zap.Int64("job_id", w.ID), zap.String("queue", w.Queue), zap.String("kind", w.Kind), zap.Int("attempt", w.Attempt),
			zap.String("outcome", string(o)), zap.Bool("orphan", orphan), zap.Duration("delay", w.Delay),
		}, fields...)...)
		c := store.Count{Queue: w.Queue, Kind: w.Kind, Failed: 1}
		if o == Buried {
			c.Dead = 1
		}
		counts = addCount(counts, c)
	}
	for o, n := range jobs {
		r.cfg.Metrics.Reaped(o, orphan, n)
	}
	if len(counts) == 0 {
		return
	}
	if _, err := r.store.Finish(ctx, store.Finish{Counts: counts, Owner: r.cfg.Owner}); err != nil {
		r.cfg.Logger.Warn("reaped jobs are missing in the counters", zap.Int("kinds", len(counts)), zap.Error(err))
	}
}

func addCount(counts []store.Count, c store.Count) []store.Count {
	for i := range counts {
		if counts[i].Queue == c.Queue && counts[i].Kind == c.Kind {
			counts[i].Failed += c.Failed
			counts[i].Dead += c.Dead
			return counts
		}
	}
	return append(counts, c)
}
