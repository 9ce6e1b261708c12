package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"queued/job"
)

// run is one claimed job on its way through the pool, and the context of its
// handler. Its cancel carries a cause of package job.
type run struct {
	context.Context
	cancel   context.CancelCauseFunc
	deadline time.Time

	job     *job.Job
	lease   *lease
	lane    *lane
	kind    *kind
	handler job.Handler
	policy  job.Policy

	arrived time.Time     // in the buffer
	started time.Time     // zero: never
	cut     time.Time     // when it was cancelled, zero: never
	took    time.Duration // of the handler
	overdue bool          // its handler ignores the cancel
}

// setContext makes r a context. Its deadline is set when it starts, and kept by the
// timer of its slot: a timer for each run would cost as much as all the rest of it.
func (r *run) setContext(base context.Context) {
	r.Context, r.cancel = context.WithCancelCause(base)
}

// Deadline is when the run times out.
func (r *run) Deadline() (time.Time, bool) { return r.deadline, true }

// now estimates the store's clock at the local time t, at the late end.
func (r *run) now(t time.Time) time.Time { return r.job.ClaimedAt.Add(t.Sub(r.lease.claimed)) }

func (r *run) fields() []zap.Field {
	return []zap.Field{
		zap.Int64("job_id", r.job.ID), zap.String("queue", r.job.Queue), zap.String("kind", r.job.Kind), zap.Int("attempt", r.job.Attempt),
	}
}

// slot is a worker's place. Guarded by Pool.mu.
type slot struct {
	lane  *lane
	run   *run // nil when idle
	timer *time.Timer
	armed time.Time // when timer fires; zero: it does not
}

// work runs jobs until the pool stops.
func (p *Pool) work(s *slot) {
	for r := p.next(s); r != nil; r = p.next(s) {
		result, err := p.call(s, r)
		p.ended(s, r, result, err)
	}
}

// next waits for a job and starts it; nil when the pool stops.
func (p *Pool) next(s *slot) *run {
	l := s.lane
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.stopping {
		r := l.buffer.pop()
		if r == nil {
			if l.more {
				wake(p.wakeClaim)
			}
			l.ready.Wait()
			continue
		}
		// The process may have been stopped for any time since the claim. Without a
		// proof nothing is started; handing back is safe, the token guards it.
		now := time.Now()
		if !now.Before(r.lease.until) {
			p.put(job.Release(r.job), r)
			continue
		}
		if x := r.job.ExpiresAt; !x.IsZero() && !r.now(now).Before(x) {
			p.put(job.Refuse(r.job, job.ReasonExpired, "not run before it expired at "+x.UTC().Format(time.RFC3339)), r)
			continue
		}
		s.run = r
		l.running++
		r.started = now
		r.deadline = now.Add(r.job.RunTimeout(r.policy))
		s.arm(p, now, r.deadline)
		if p.started++; p.started == p.max {
			p.stopFor(ReasonMaxJobs)
		}
		if l.more && l.want(0) > 0 {
			wake(p.wakeClaim)
		}
		return r
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if p.live--; p.live == 0 {
		close(p.exited)
	}
	return nil
}

// errGoexit is the outcome of a handler that ended its goroutine.
var errGoexit = errors.New("handler called runtime.Goexit")

// call runs the handler. A panic is a failed attempt.
func (p *Pool) call(s *slot, r *run) (result string, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n\n%s", v, debug.Stack())
			return
		}
		// This goroutine is ending; another one takes the place.
		p.ended(s, r, "", errGoexit)
		go p.work(s)
	}()
	result, err = r.handler.Run(r, r.job)
	returned = true
	return result, err
}

// ended hands over how the run in s ended.
func (p *Pool) ended(s *slot, r *run, result string, err error) {
	r.took = time.Since(r.started)
	w, ok := job.Decide(r.job, result, err, context.Cause(r), r.policy, job.RandomJitter)
	r.cancel(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.run = nil
	s.lane.running--
	s.lane.ended++
	if r.overdue {
		r.lease.overdue--
		p.state.overdue--
	}
	switch {
	case p.gone: // given up by the stop
	case ok:
		p.put(w, r)
	default:
		p.lose(r)
	}
}

// lose gives up a run whose lease is lost or whose job was changed from outside:
// nothing is written for it. p.mu is held.
func (p *Pool) lose(r *run) {
	p.forget(r, false)
	p.out.lost = append(p.out.lost, r)
	wake(p.wakeOut) // the finisher logs and counts it
}

// arm sets the timer of s to fire at the given time at the latest. It may fire
// for a run that has ended, so that short runs don't touch the timer at all.
func (s *slot) arm(p *Pool, now, at time.Time) {
	switch {
	case !s.armed.IsZero() && !at.Before(s.armed):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(at.Sub(now), func() { p.watch(s) })
	default:
		s.timer.Reset(at.Sub(now))
	}
	s.armed = at
}

// watch is the timer of s: it ends a run that takes too long, and notes one
// that goes on all the same.
func (p *Pool) watch(s *slot) {
	if r := p.check(s); r != nil {
		p.cfg.Metrics.Count(HandlerOverdue, 1)
		p.log.Warn("handler ignores its cancel, its place stays taken until it returns", append(r.fields(), zap.NamedError("cause", context.Cause(r)))...)
	}
}

// check does what is due for the run of s, arms the timer for what comes next,
// and returns the run if it has just become overdue.
func (p *Pool) check(s *slot) *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.armed = time.Time{}
	r, now := s.run, time.Now()
	switch {
	case r == nil || p.gone:
	case r.cut.IsZero() && now.Before(r.deadline):
		s.arm(p, now, r.deadline)
	case r.cut.IsZero():
		s.interrupt(p, job.ErrTimeout)
	case now.Before(r.cut.Add(p.cfg.CancelGrace)):
		s.arm(p, now, r.cut.Add(p.cfg.CancelGrace))
	case !r.overdue:
		r.overdue = true
		r.lease.overdue++
		p.state.overdue++
		return r
	}
	return nil
}

// interrupt cancels the run of s, if any, with a cause; the first one holds.
// p.mu is held.
func (s *slot) interrupt(p *Pool, cause error) {
	r := s.run
	if r == nil || !r.cut.IsZero() {
		return
	}
	r.cancel(cause)
	r.cut = time.Now()
	s.arm(p, r.cut, r.cut.Add(p.cfg.CancelGrace))
}
