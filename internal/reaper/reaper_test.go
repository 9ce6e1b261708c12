package reaper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"queued/internal/store"
	"queued/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var known = job.Policy{MaxAttempts: 3, Timeout: time.Minute, Backoff: job.Backoff{Base: time.Minute, Cap: time.Hour, Jitter: 0.5}}

type policies struct{}

func (policies) Lookup(kind string) (job.Handler, job.Policy, bool) {
	return nil, known, kind == "known"
}

// fake answers as the test says and notes what it was asked for.
type fake struct {
	expired func() ([]store.Lease, error)
	orphans func(after int64, span int) ([]*job.Job, int64, error)
	reapErr func(token int64) error
	retain  func(what store.Retained, cursor int64) (store.Retention, error)

	mu       sync.Mutex
	rounds   []time.Time
	reaped   map[int64][]job.Write
	finished []store.Finish
	steps    map[store.Retained][]time.Time
}

func newFake() *fake {
	return &fake{reaped: map[int64][]job.Write{}, steps: map[store.Retained][]time.Time{}}
}

func (s *fake) Expired(context.Context, time.Duration, int) ([]store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds = append(s.rounds, time.Now())
	if s.expired == nil {
		return nil, nil
	}
	return s.expired()
}

func (s *fake) Reap(_ context.Context, token int64, _ time.Duration, writes []job.Write) ([]store.Fate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reapErr != nil {
		if err := s.reapErr(token); err != nil {
			return nil, err
		}
	}
	s.reaped[token] = writes
	return recorded(writes), nil
}

func recorded(writes []job.Write) []store.Fate {
	fates := make([]store.Fate, len(writes))
	for i := range fates {
		fates[i] = store.Recorded
	}
	return fates
}

func (s *fake) Orphans(_ context.Context, after int64, span int) ([]*job.Job, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphans == nil {
		return nil, 0, nil
	}
	return s.orphans(after, span)
}

func (s *fake) Finish(_ context.Context, f store.Finish) ([]store.Fate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = append(s.finished, f)
	return recorded(f.Writes), nil
}

func (s *fake) Retain(_ context.Context, what store.Retained, _ time.Duration, cursor int64, _ int) (store.Retention, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps[what] = append(s.steps[what], time.Now())
	if s.retain == nil {
		return store.Retention{Done: true}, nil
	}
	return s.retain(what, cursor)
}

// run runs a reaper for d and returns what it logged.
func run(t *testing.T, s *fake, d time.Duration, opt ...func(*Config)) (*Reaper, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := Config{Policies: policies{}, Default: job.Policy{MaxAttempts: 5, Backoff: job.Backoff{Base: time.Second, Cap: time.Hour}}, Owner: 9, Logger: zap.New(core)}
	for _, o := range opt {
		o(&cfg)
	}
	r, err := New(cfg, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r.Run(ctx)
	return r, logs
}

func lost(id int64, kind string, attempt int) *job.Job {
	return &job.Job{ID: id, Queue: "q", Kind: kind, Key: fmt.Sprint(id), Attempt: attempt, Token: 1}
}

func TestPlan_BacksOffUntilTheLastAttempt(t *testing.T) {
	policy := func(kind string) job.Policy {
		if kind == "known" {
			return known
		}
		return job.Policy{MaxAttempts: 5, Backoff: job.Backoff{Base: time.Second, Cap: time.Hour}}
	}
	own := lost(5, "known", 3)
	own.MaxAttempts = 4
	plan := Plan([]store.Lease{
		{Token: 1, Jobs: []*job.Job{lost(1, "known", 1), lost(2, "known", 2), lost(3, "known", 3), lost(4, "other", 3), own}},
		{Token: 2},
	}, policy, func() float64 { return 0.5 })
	type brief struct {
		ID     int64
		To     job.State
		Delay  time.Duration
		Reason string
	}
	var got []brief
	for _, w := range plan[0].Writes {
		if w.Error == "" || w.Uncount || w.KeepDue {
			t.Errorf("got %+v, want a counted failure", w)
		}
		got = append(got, brief{w.ID, w.To, w.Delay, w.Reason})
	}
	want := []brief{
		{1, job.Ready, 75 * time.Second, ""},
		{2, job.Ready, 150 * time.Second, ""},
		{3, job.Dead, 0, job.ReasonWorkerDied},
		{4, job.Ready, 4 * time.Second, ""},
		{5, job.Ready, 300 * time.Second, ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("want - got +:\n%s", d)
	}
	if len(plan) != 2 || plan[1].Token != 2 || len(plan[1].Writes) != 0 {
		t.Errorf("got %+v, want a lease without jobs removed as well", plan[1])
	}
}

func TestReap_EveryLeaseAndCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		once := []store.Lease{{Token: 1, Jobs: []*job.Job{lost(1, "known", 1), lost(2, "known", 3)}}, {Token: 2, Jobs: []*job.Job{lost(3, "known", 1)}}}
		s.expired = func() ([]store.Lease, error) {
			l := once
			once = nil
			return l, nil
		}
		r, logs := run(t, s, time.Second)
		if len(s.reaped[1]) != 2 || len(s.reaped[2]) != 1 {
			t.Errorf("got %v, want both leases reaped", s.reaped)
		}
		want := []store.Finish{
			{Counts: []store.Count{{Queue: "q", Kind: "known", Failed: 2, Dead: 1}}, Owner: 9},
			{Counts: []store.Count{{Queue: "q", Kind: "known", Failed: 1}}, Owner: 9},
		}
		if d := cmp.Diff(want, s.finished); d != "" {
			t.Errorf("want - got +:\n%s", d)
		}
		if got := logs.FilterMessageSnippet("worker died").Len(); got != 3 {
			t.Errorf("got %d lines, want one for each job", got)
		}
		if r.State().Reaped.IsZero() {
			t.Error("got no time of the last round")
		}
	})
}

func TestReap_RoundsFollowTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		run(t, s, 10*time.Minute)
		if n := len(s.rounds); n < 50 || n > 75 {
			t.Errorf("got %d rounds in 10 minutes, want one about each 10 s", n)
		}
	})
}

func TestReap_FullRoundIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		next := int64(0)
		s.expired = func() (l []store.Lease, err error) {
			for range min(maxLeases, 1000-next) {
				next++
				l = append(l, store.Lease{Token: next})
			}
			return l, nil
		}
		run(t, s, time.Second)
		if got := len(s.reaped); got != 1000 {
			t.Errorf("got %d leases reaped in a second, want all 1000", got)
		}
	})
}

func TestReap_LeaseOfOthersAndBrokenLeaseDontStopTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		s.expired = func() ([]store.Lease, error) { return []store.Lease{{Token: 1}, {Token: 2}, {Token: 3}}, nil }
		s.reapErr = func(token int64) error {
			return map[int64]error{1: fmt.Errorf("reap: %w", job.ErrLeaseLost), 2: fmt.Errorf("reap: %w", store.ErrData)}[token]
		}
		_, logs := run(t, s, time.Second)
		if _, ok := s.reaped[3]; !ok {
			t.Error("got the third lease not reaped")
		}
		if got := logs.FilterMessage("can't reap a lease").Len(); got != 1 {
			t.Errorf("got %d lines about the broken one, want 1", got)
		}
	})
}

func TestReap_OutageDelaysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		began := time.Now()
		s.expired = func() ([]store.Lease, error) {
			if time.Since(began) < 15*time.Minute {
				return nil, store.ErrUnavailable
			}
			return nil, nil
		}
		r, logs := run(t, s, 16*time.Minute)
		if since := time.Since(r.State().Reaped); since > 15*time.Second {
			t.Errorf("got the last round %s ago, want the loop to have recovered", since)
		}
		if got := logs.FilterMessageSnippet("can't look for expired").Len(); got > 16 {
			t.Errorf("got %d lines in 15 minutes, want one a minute at most", got)
		}
	})
}

func TestReap_PanicStartsTheLoopAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		n := 0
		s.expired = func() ([]store.Lease, error) {
			if n++; n < 4 {
				panic("boom")
			}
			return nil, nil
		}
		s.retain = func(what store.Retained, _ int64) (store.Retention, error) {
			if len(s.steps[what]) == 1 {
				panic("boom")
			}
			return store.Retention{Done: true}, nil
		}
		r, logs := run(t, s, 10*time.Minute)
		if since := time.Since(r.State().Reaped); since > 15*time.Second {
			t.Errorf("got the last round %s ago, want the loop alive", since)
		}
		if got := len(r.State().Retained); got != 2 {
			t.Errorf("got %d tables cleaned, want 2", got)
		}
		if got := logs.FilterMessageSnippet("panicked").Len(); got != 5 {
			t.Errorf("got %d lines, want 5", got)
		}
	})
}

func TestSweep_OrphanIsTakenOnlyWhenSeenALeaseApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		began := time.Now()
		s.orphans = func(after int64, span int) ([]*job.Job, int64, error) {
			switch {
			case span == 1 && after == 6: // it was only a moment's
				return nil, 0, nil
			case span == 1:
				return []*job.Job{lost(after+1, "known", 1)}, 0, nil
			case after == 0:
				return []*job.Job{lost(5, "known", 1)}, 100, nil
			default:
				return []*job.Job{lost(7, "known", 3)}, 0, nil
			}
		}
		var at time.Duration
		r, _ := run(t, s, 55*time.Second)
		for _, f := range s.finished {
			for _, w := range f.Writes {
				if w.ID != 5 || w.To != job.Ready {
					t.Errorf("got job %d written to %s, want only 5 to ready", w.ID, w.To)
				}
			}
		}
		if at = s.rounds[0].Sub(began); len(s.finished) < 2 || at > time.Second {
			t.Errorf("got %d writes, want the orphan written and counted", len(s.finished))
		}
		if r.State().Swept.IsZero() {
			t.Error("got no time of the last sweep")
		}
	})
}

func TestRetain_EveryTableSoonAfterTheStartAndThenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		began := time.Now()
		r, _ := run(t, s, 10*time.Minute, func(c *Config) { c.FinishedAge, c.DeadAge = time.Hour, time.Hour })
		for _, what := range []store.Retained{store.FinishedJobs, store.DeadJobs, store.JobErrors, store.Counters, store.Daemons} {
			steps := s.steps[what]
			if len(steps) < 8 || len(steps) > 13 {
				t.Errorf("%s: got %d steps in 10 minutes, want about 10", what, len(steps))
				continue
			}
			if first := steps[0].Sub(began); first > 5*time.Second {
				t.Errorf("%s: got the first step after %s, want 5s at most", what, first)
			}
			if r.State().Retained[what].IsZero() {
				t.Errorf("%s: got no time of the last pass", what)
			}
		}
	})
}

func TestRetain_AgeZeroKeepsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		run(t, s, time.Minute)
		if len(s.steps[store.FinishedJobs])+len(s.steps[store.DeadJobs])+len(s.steps[store.JobErrors]) > 0 {
			t.Errorf("got steps %v, want none", s.steps)
		}
	})
}

func TestRetain_BacklogIsWorkedOffFasterButHalfOfTheTimeIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		const took = 20 * time.Millisecond
		var cursors []int64
		left := 100_000
		s.retain = func(what store.Retained, cursor int64) (store.Retention, error) {
			if what != store.FinishedJobs {
				return store.Retention{Done: true}, nil
			}
			s.mu.Unlock()
			time.Sleep(took)
			s.mu.Lock()
			cursors = append(cursors, cursor)
			left -= retainBatch
			return store.Retention{Deleted: retainBatch, Next: cursor + 500, Done: left == 0}, nil
		}
		r, _ := run(t, s, 20*time.Second, func(c *Config) { c.FinishedAge = time.Hour })
		if left > 0 {
			t.Errorf("got %d rows left of 100,000 after 20 s, want none", left)
		}
		steps := s.steps[store.FinishedJobs]
		for i := 1; i < 200; i++ {
			if gap := steps[i].Sub(steps[i-1]); gap < 2*took {
				t.Fatalf("got steps %s apart that take %s, want half of the time left to others", gap, took)
			}
			if cursors[i] != int64(i)*500 {
				t.Fatalf("got cursor %d at step %d, want %d", cursors[i], i, i*500)
			}
		}
		if r.State().Retained[store.FinishedJobs].IsZero() {
			t.Error("got no time of the last pass")
		}
	})
}

func TestRetain_TroubleDelaysOnly(t *testing.T) {
	for _, kind := range []error{store.ErrUnavailable, store.ErrConflict, errors.New("other")} {
		synctest.Test(t, func(t *testing.T) {
			s := newFake()
			began := time.Now()
			s.retain = func(store.Retained, int64) (store.Retention, error) {
				if time.Since(began) < 5*time.Minute {
					return store.Retention{}, kind
				}
				return store.Retention{Done: true}, nil
			}
			r, logs := run(t, s, 8*time.Minute)
			if got := len(r.State().Retained); got != 2 {
				t.Errorf("got %d tables cleaned after the trouble, want 2", got)
			}
			if got := logs.FilterMessageSnippet("can't remove").Len(); got > 12 {
				t.Errorf("got %d lines for two tables in 5 minutes, want one a minute each at most", got)
			}
		})
	}
}

func TestNew_ReportsEveryViolation(t *testing.T) {
	_, err := New(Config{Lease: -1, Grace: -1, FinishedAge: -1}, newFake())
	want := "reaper: lease must not be negative (got -1ns)\ngrace must not be negative (got -1ns)\n" +
		"age of finished jobs must not be negative (got -1ns)\npolicies must be set\nmax attempts of the default policy must be at least 1 (got 0)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
