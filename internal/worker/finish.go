package worker

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

const (
	maxFinish    = 500                  // outcomes in one write
	gatherFor    = 3 * time.Millisecond // how long an outcome waits for others that will surely follow
	gatherEnough = 200                  // outcomes that are written without waiting
	flushAfter   = time.Second          // before counters and ended leases are written on their own
	maxConflicts = 3                    // repeats of a batch that meets a lock conflict before it is split
)

// outbox holds what the finisher is to do next. Guarded by Pool.mu. It needs no
// limit of its own: the claimer asks for nothing while it is full.
type outbox struct {
	writes  []job.Write
	runs    []*run  // of the writes
	lost    []*run  // ended with nothing to be written
	settled []int64 // tokens of leases without unfinished jobs
	closed  bool    // nothing follows
}

func (o *outbox) add(w job.Write, r *run) {
	o.writes = append(o.writes, w)
	o.runs = append(o.runs, r)
}

// reset empties o and keeps its memory.
func (o *outbox) reset() {
	clear(o.writes)
	clear(o.runs)
	clear(o.lost)
	o.writes, o.runs, o.lost, o.settled = o.writes[:0], o.runs[:0], o.lost[:0], o.settled[:0]
}

// put hands an outcome to the finisher. p.mu is held.
func (p *Pool) put(w job.Write, r *run) {
	p.out.add(w, r)
	if n := len(p.out.writes); n == 1 || n == gatherEnough || n == p.open {
		wake(p.wakeOut)
	}
}

func (p *Pool) closeOutbox() {
	p.mu.Lock()
	p.out.closed = true
	p.mu.Unlock()
	wake(p.wakeOut)
}

// finisher is what the finish loop keeps for itself.
type finisher struct {
	settled []int64
	counted []*kind // kinds whose count is not sent yet
	counts  []store.Count
	outage  loop.Outage
	backoff loop.Backoff
}

func (f *finisher) pending() bool { return len(f.settled)+len(f.counted) > 0 }

// finishLoop writes outcomes until the outbox is closed and empty. While one
// batch is being written the next one gathers.
func (p *Pool) finishLoop() {
	f := &p.finisher
	f.outage = p.outage("can't record outcomes, waiting for the database", "recording outcomes again")
	f.backoff = loop.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	var box outbox
	for p.gather(&box) {
		for _, r := range box.lost {
			p.log.Warn("lease lost or job changed while it was running, its outcome is not written", r.fields()...)
			r.kind.rec.Ended(Ending{Outcome: LeaseLost})
		}
		f.settled = append(f.settled, box.settled...)
		for lo := 0; lo < len(box.writes); lo += maxFinish {
			hi := min(lo+maxFinish, len(box.writes))
			p.record(box.writes[lo:hi], box.runs[lo:hi])
		}
		if len(box.writes) == 0 && f.pending() {
			p.record(nil, nil)
		}
		box.reset()
	}
}

// gather swaps the outbox with the empty box as soon as there is enough in it,
// or nothing more to wait for. It returns false when there never will be.
func (p *Pool) gather(box *outbox) bool {
	waited := false
	for {
		p.mu.Lock()
		n := len(p.out.writes)
		pending := p.finisher.pending() || len(p.out.settled) > 0
		switch {
		case n >= gatherEnough, n > 0 && (waited || n == p.open), len(p.out.lost) > 0, pending && waited, p.out.closed:
			ended := p.out.closed && n == 0 && len(p.out.lost) == 0 && !pending
			closed := p.out.closed
			*box, p.out = p.out, *box
			p.out.closed = closed
			p.mu.Unlock()
			if n >= maxUnwritten {
				wake(p.wakeClaim)
			}
			return !ended
		}
		p.mu.Unlock()
		var timer <-chan time.Time
		switch {
		case n > 0:
			timer = time.After(gatherFor)
		case pending:
			timer = time.After(flushAfter)
		}
		select {
		case <-p.wakeOut:
		case <-timer:
			waited = true
		}
	}
}

// record writes a batch, along with the counters and ended leases that are
// pending. It repeats what failed for passing reasons, and splits a batch that
// the store refuses until the one outcome that it takes exception to stands
// alone. An outcome that can't be written is left to the lease: it runs out, the
// job comes back, and its handler is told by the attempt number.
func (p *Pool) record(writes []job.Write, runs []*run) {
	f := &p.finisher
	for conflicts := 0; ; {
		f.counts = f.counts[:0]
		for _, k := range f.counted {
			f.counts = append(f.counts, k.count)
		}
		began := time.Now()
		fates, err := p.store.Finish(p.base, store.Finish{Writes: writes, Settled: f.settled, Counts: f.counts, Owner: p.cfg.Owner})
		if err == nil {
			f.outage.OK()
			f.backoff.Reset()
			p.cfg.Metrics.Finished(len(writes), time.Since(began))
			p.sent()
			p.confirm(writes, runs, fates)
			return
		}
		p.cfg.Metrics.Count(FinishFailed, 1)
		conflict := errors.Is(err, store.ErrConflict)
		if conflict {
			conflicts++
		}
		switch {
		case conflict && conflicts <= maxConflicts, passing(err):
			f.outage.Failed(err)
			if !p.pause(f.backoff.Next(), runs) {
				p.sent() // what is pending is given up as well
				p.unrecorded(writes, runs, err)
				return
			}
		case len(writes) == 0 || f.pending():
			// Counters are not worth an outcome, and leases run out by themselves.
			p.log.Warn("counters and ended leases dropped", zap.Error(err), zap.Int("counters", len(f.counts)), zap.Int("leases", len(f.settled)))
			p.sent()
			if len(writes) == 0 {
				return
			}
		case len(writes) == 1:
			p.unrecorded(writes, runs, err)
			return
		default:
			half := len(writes) / 2
			p.record(writes[:half], runs[:half])
			p.record(writes[half:], runs[half:])
			return
		}
	}
}

// passing says whether an error is about the database as a whole and not about a
// value or a row.
func passing(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrDenied)
}

// pause waits before a repeat and says whether to make it. While the pool runs it
// is always made, past the end of the leases, too: the token guards the write, and
// after an outage it may still be the first to reach the row. A stop
// gives up when all leases have surely run out, a hurried one at once.
func (p *Pool) pause(d time.Duration, runs []*run) bool {
	if !p.worthwhile(runs) {
		return false
	}
	loop.Sleep(p.base, d, nil)
	return p.worthwhile(runs)
}

func (p *Pool) worthwhile(runs []*run) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.out.closed {
		return true
	}
	select {
	case <-p.hurry:
		return false
	default:
	}
	now := time.Now()
	return slices.ContainsFunc(runs, func(r *run) bool { return now.Before(r.lease.until.Add(p.margin())) })
}

// sent forgets the counters and ended leases that were pending.
func (p *Pool) sent() {
	f := &p.finisher
	for _, k := range f.counted {
		k.count = store.Count{Queue: k.count.Queue, Kind: k.count.Kind}
	}
	clear(f.counted)
	f.counted, f.settled = f.counted[:0], f.settled[:0]
}

// unrecorded gives up outcomes.
func (p *Pool) unrecorded(writes []job.Write, runs []*run, err error) {
	p.mu.Lock()
	for _, r := range runs {
		p.forget(r, true)
	}
	p.mu.Unlock()
	for i, r := range runs {
		r.kind.rec.Ended(Ending{Outcome: Unrecorded})
		if r.started.IsZero() {
			p.log.Warn("job not run and not handed back; it comes back when its lease ends", append(r.fields(), zap.Error(err))...)
			continue
		}
		p.log.Error("job ran but its outcome is not recorded; it runs again when its lease ends",
			append(r.fields(), zap.String("outcome", string(writes[i].To)), zap.Error(err))...)
	}
}

// confirm takes note of what became of the writes.
func (p *Pool) confirm(writes []job.Write, runs []*run, fates []store.Fate) {
	p.mu.Lock()
	for _, r := range runs {
		p.forget(r, false)
	}
	p.mu.Unlock()
	f := &p.finisher
	for i, fate := range fates {
		w, r := &writes[i], runs[i]
		e := ending(w, r, fate)
		r.kind.rec.Ended(e)
		p.logEnd(w, r, e)
		if fate == store.LeaseLost || e.Outcome == Released || e.Outcome == Postponed {
			continue
		}
		c := &r.kind.count
		if c.Done+c.Failed+c.Dead == 0 {
			f.counted = append(f.counted, r.kind)
		}
		c.RunTime += r.took
		if w.To == job.Done {
			c.Done++
		}
		if w.Failed() {
			c.Failed++
		}
		if e.Outcome == Dead {
			c.Dead++
		}
	}
}

func (p *Pool) logEnd(w *job.Write, r *run, e Ending) {
	level, msg := zap.DebugLevel, ""
	switch e.Outcome {
	case Done:
		msg = "job done"
	case Failed:
		level, msg = zap.WarnLevel, "job failed, it will be tried again"
	case Dead:
		level, msg = zap.ErrorLevel, "job is a dead letter"
	case NotBuried:
		level, msg = zap.ErrorLevel, "dead letter could not be written, the job is kept and tried again"
	case Postponed:
		msg = "job put back for later"
	case Released:
		msg = "job handed back"
	case LeaseLost:
		level, msg = zap.WarnLevel, "lease lost, the outcome of the run was not written"
	case Unrecorded, Abandoned: // logged where they happen
		return
	}
	ce := p.log.Check(level, msg)
	if ce == nil {
		return
	}
	fields := r.fields()
	if !r.started.IsZero() {
		fields = append(fields, zap.Duration("took", r.took))
	}
	if w.Error != "" {
		fields = append(fields, zap.String("error", w.Error))
	}
	if w.Reason != "" {
		fields = append(fields, zap.String("reason", w.Reason))
	}
	if w.Delay > 0 {
		fields = append(fields, zap.Duration("delay", w.Delay))
	}
	ce.Write(fields...)
}
