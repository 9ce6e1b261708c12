package reaper

import (
	"context"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
)

const (
	retainBatch = 500                    // rows of a step
	retainPause = 100 * time.Millisecond // between steps
	retainRest  = time.Minute            // after nothing too old is left
	retainFirst = 5 * time.Second        // the first step comes within this time: some processes don't live long

	countersAge = 26 * time.Hour // charts show a day
	daemonsAge  = time.Hour
)

// retained is a table that is cleaned.
type retained struct {
	what   store.Retained
	age    time.Duration
	cursor int64
	due    time.Time // of the next step
	pause  time.Duration
	outage loop.Outage
	retry  loop.Backoff
}

func (r *Reaper) retainLoop(ctx context.Context) {
	var tables []*retained
	for what, age := range map[store.Retained]time.Duration{
		store.FinishedJobs: r.cfg.FinishedAge,
		store.DeadJobs:     r.cfg.DeadAge,
		store.JobErrors:    r.cfg.DeadAge,
		store.Counters:     countersAge,
		store.Daemons:      daemonsAge,
	} {
		if age == 0 {
			continue
		}
		log := r.cfg.Logger.With(zap.String("table", string(what)))
		tables = append(tables, &retained{
			what: what, age: age, pause: retainPause,
			due:    time.Now().Add(rand.N(retainFirst)),
			outage: loop.Outage{Log: log, Begun: "can't remove old rows, trying again", Over: "removing old rows again"},
			retry:  loop.Backoff{Min: time.Second, Max: retainRest},
		})
	}
	var took time.Duration // of the last step
	for {
		next := tables[0]
		for _, t := range tables {
			if t.due.Before(next.due) {
				next = t
			}
		}
		// At least half of the time is left to others, however many tables have a backlog.
		if !loop.Sleep(ctx, max(time.Until(next.due), took), nil) {
			return
		}
		took = r.retain(ctx, next)
	}
}

// retain makes one step in a table, sets when the next is due and returns how
// long it took. With a backlog the pauses become shorter.
func (r *Reaper) retain(ctx context.Context, t *retained) (took time.Duration) {
	began := time.Now()
	got, err := r.store.Retain(ctx, t.what, t.age, t.cursor, retainBatch)
	took = time.Since(began)
	if err != nil {
		if ctx.Err() == nil {
			t.outage.Failed(err)
		}
		t.due = time.Now().Add(t.retry.Next())
		return took
	}
	t.outage.OK()
	t.retry.Reset()
	t.cursor = got.Next
	if got.Deleted > 0 {
		r.cfg.Metrics.Retained(t.what, got.Deleted)
	}
	switch {
	case got.Done:
		t.cursor, t.pause = 0, retainPause
		t.due = time.Now().Add(loop.Jitter(retainRest, 0.2))
		r.note(func(s *State) { s.Retained[t.what] = time.Now() })
		return took
	case got.Deleted == retainBatch:
		t.pause /= 2
	default:
		t.pause = retainPause
	}
	t.due = time.Now().Add(t.pause)
	return took
}
