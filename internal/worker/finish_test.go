package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"queued/internal/store"
	"queued/job"
)

func TestFinish_LoneOutcomeIsWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		var ended time.Time
		p := start(t, m, handlers{"x": f(func(context.Context, *job.Job) error {
			time.Sleep(70 * time.Millisecond)
			ended = time.Now()
			return nil
		})}, 4)
		time.Sleep(time.Second)
		m.add(1, "x")
		time.Sleep(500 * time.Millisecond)
		p.halt()
		if len(m.finished) != 2 || m.finished[0].writes != 1 || !m.finished[0].at.Equal(ended) {
			t.Errorf("got writes %v, want the first at %s, when the job ended", m.finished, ended)
		}
	})
}

func TestFinish_OutcomesGatherWhileOneWriteIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(int, store.Finish) error { time.Sleep(20 * time.Millisecond); return nil }
		m.add(5000, "x")
		p := start(t, m, handlers{"x": sleeps(time.Millisecond)}, 16, func(c *Config) { c.Drain = true })
		<-p.reason
		if got := m.states()[job.Done]; got != 5000 {
			t.Errorf("got %d done, want 5000", got)
		}
		if m.finishes > 40 {
			t.Errorf("got %d writes for 5,000 jobs, want 40 at most", m.finishes)
		}
	})
}

func TestFinish_SlowDatabaseHoldsBackClaimsNotWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(n int, _ store.Finish) error {
			if n == 1 {
				time.Sleep(20 * time.Second)
			}
			return nil
		}
		m.add(5000, "x")
		p := start(t, m, handlers{"x": sleeps(0)}, 16)
		time.Sleep(10 * time.Second)
		s := p.State()
		if n := s.Unwritten; n < maxUnwritten || n > maxUnwritten+maxBuffer+16 {
			t.Errorf("got %d unwritten outcomes, want about %d", n, maxUnwritten)
		}
		if s.Lanes[0].Running != 0 {
			t.Errorf("got %d places taken, want none", s.Lanes[0].Running)
		}
		time.Sleep(15 * time.Second)
		p.halt()
		if got := m.states()[job.Done]; got != 5000 {
			t.Errorf("got %d done, want all", got)
		}
	})
}

func TestFinish_IsRepeatedUntilTheDatabaseIsBack(t *testing.T) {
	for name, effect := range map[string]bool{"before the effect": false, "after the effect": true} {
		for _, kind := range []error{store.ErrUnavailable, store.ErrConflict} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMem()
					var ran atomic.Int32
					fail := func(n int) error {
						if n <= 3 {
							return fmt.Errorf("finish: %w", kind)
						}
						return nil
					}
					if effect {
						m.onWrote = fail
					} else {
						m.onFinish = func(n int, _ store.Finish) error { return fail(n) }
					}
					id := m.add(1, "x")[0]
					p := start(t, m, handlers{"x": f(func(context.Context, *job.Job) error { ran.Add(1); return nil })}, 1)
					time.Sleep(10 * time.Second)
					p.halt()
					if r := m.get(id); r.state != job.Done || ran.Load() != 1 || r.writes != 1 {
						t.Errorf("got %s, run %d times, written %d times, want done once", r.state, ran.Load(), r.writes)
					}
					if got := m.counts["x"].Done; got != 1 {
						t.Errorf("got %d counted, want 1", got)
					}
					if m.held() != 0 {
						t.Errorf("got %d leases left, want none", m.held())
					}
				})
			})
		}
	}
}

func TestFinish_OutcomesOutliveALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		from, outage := time.Now().Add(time.Second), 10*time.Minute
		away := func() error {
			if since := time.Since(from); since >= 0 && since < outage {
				return store.ErrUnavailable
			}
			return nil
		}
		m.onClaim, m.onRenew = func(int) error { return away() }, func(int) error { return away() }
		m.onFinish = func(int, store.Finish) error { return away() }
		ids := m.add(3, "x")
		p := start(t, m, handlers{"x": sleeps(2 * time.Second)}, 3)
		time.Sleep(time.Second + outage + 2*time.Second)
		for _, id := range ids {
			if r := m.get(id); r.state != job.Done || r.Attempt != 1 {
				t.Errorf("got %s, attempt %d, want the effect recorded when the database is back", r.state, r.Attempt)
			}
		}
		p.halt()
		if got := p.logs.FilterMessageSnippet("can't record outcomes").Len(); got < 1 || got > 11 {
			t.Errorf("got %d lines in 10 minutes, want one a minute at most", got)
		}
	})
}

func TestFinish_StopGivesUpWhenTheLeaseIsSurelyOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(int, store.Finish) error { return store.ErrUnavailable }
		m.onRenew = func(int) error { return store.ErrUnavailable }
		ids := m.add(3, "x")
		p := start(t, m, handlers{"x": sleeps(time.Second)}, 3)
		time.Sleep(2 * time.Second)
		began := time.Now()
		p.halt()
		if took := time.Since(began); took < 27*time.Second || took > 31*time.Second {
			t.Errorf("got given up after %s, want at the end of the lease of 30s", took)
		}
		lines := p.logs.FilterMessageSnippet("ran but its outcome is not recorded").All()
		if len(lines) != 3 {
			t.Fatalf("got %d lines, want one for each job", len(lines))
		}
		var got []int64
		for _, l := range lines {
			got = append(got, l.ContextMap()["job_id"].(int64))
		}
		if slices.Sort(got); !slices.Equal(got, ids) {
			t.Errorf("got lines about jobs %v, want %v", got, ids)
		}
	})
}

func TestFinish_HurriedStopDoesNotWaitForTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(int, store.Finish) error { return store.ErrUnavailable }
		m.add(1, "x")
		p := start(t, m, handlers{"x": sleeps(0)}, 3)
		time.Sleep(time.Second)
		began := time.Now()
		p.Hurry()
		p.halt()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("got stopped after %s, want no more than one repeat", took)
		}
	})
}

func TestFinish_StopDoesNotWaitForCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(n int, _ store.Finish) error {
			if n > 1 {
				return store.ErrUnavailable
			}
			return nil
		}
		m.add(1, "x")
		p := start(t, m, handlers{"x": sleeps(0)}, 1)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		p.halt()
		if took := time.Since(began); took > 2*time.Second || m.finishes > 3 {
			t.Errorf("got stopped after %s and %d writes, want at once", took, m.finishes)
		}
	})
}

func TestFinish_RefusedOutcomeIsIsolated(t *testing.T) {
	for name, kind := range map[string]error{"data": store.ErrData, "conflict": store.ErrConflict, "other": errBroken} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMem()
				ids := m.add(300, "x")
				poison := ids[123]
				m.onFinish = func(_ int, f store.Finish) error {
					for _, w := range f.Writes {
						if w.ID == poison {
							return fmt.Errorf("finish: %w", kind)
						}
					}
					return nil
				}
				p := start(t, m, handlers{"x": sleeps(time.Second)}, 300)
				time.Sleep(25 * time.Second)
				for _, id := range ids {
					if got := m.get(id).state; id != poison && got != job.Done || id == poison && got != job.Running {
						t.Errorf("job %d: got %s, want all but one done", id, got)
					}
				}
				lines := p.logs.FilterMessageSnippet("not recorded")
				if got := lines.Len(); got != 1 || lines.All()[0].ContextMap()["job_id"] != poison {
					t.Errorf("got %v, want one line about job %d", lines.All(), poison)
				}
				time.Sleep(30 * time.Second)
				m.reap()
				if r := m.get(poison); r.state != job.Ready {
					t.Errorf("got %s, want the job back when its lease ended", r.state)
				}
				p.Hurry()
				p.halt()
			})
		})
	}
}

func TestFinish_RefusedCountersCostNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onFinish = func(_ int, f store.Finish) error {
			if len(f.Counts) > 0 {
				return fmt.Errorf("finish: %w", store.ErrData)
			}
			return nil
		}
		m.add(100, "x")
		p := start(t, m, handlers{"x": sleeps(time.Second)}, 10)
		time.Sleep(20 * time.Second)
		p.halt()
		if got := m.states()[job.Done]; got != 100 {
			t.Errorf("got %d done, want 100", got)
		}
		if got := p.logs.FilterMessageSnippet("not recorded").Len(); got != 0 {
			t.Errorf("got %d outcomes lost, want none", got)
		}
	})
}

func TestFinish_LostLeaseIsAnOutcomeAndNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		id := m.add(1, "x")[0]
		p := start(t, m, handlers{"x": sleeps(time.Second)}, 1)
		time.Sleep(500 * time.Millisecond)
		m.change(id, func(r *row) { r.Token = 99 })
		time.Sleep(5 * time.Second)
		p.halt()
		if r := m.get(id); r.writes != 0 || r.state != job.Running {
			t.Errorf("got %d writes, %s, want the new owner's row untouched", r.writes, r.state)
		}
		if got := m.counts["x"]; got != (store.Count{}) {
			t.Errorf("got counted %+v, want nothing", got)
		}
		if got := p.logs.FilterMessageSnippet("lease lost").Len(); got != 1 {
			t.Errorf("got %d lines, want 1", got)
		}
	})
}

func TestFinish_CountsAndLeasesFollowWithinASecondOfIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		p := start(t, m, handlers{"x": sleeps(0)}, 1)
		m.add(1, "x")
		time.Sleep(1100 * time.Millisecond)
		if got := m.held(); got != 0 {
			t.Errorf("got %d leases, want none", got)
		}
		time.Sleep(time.Minute)
		p.halt()
		if got := m.counts["x"].Done; got != 1 || m.finishes != 2 {
			t.Errorf("got %d counted, %d writes after an idle minute, want 1 and 2", got, m.finishes)
		}
	})
}

func TestFinish_UnburiedJobIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(1, "x")
		p := start(t, notBuried{m}, handlers{"x": f(func(context.Context, *job.Job) error { return job.Permanent(errBroken) })}, 1)
		time.Sleep(2 * time.Second)
		p.halt()
		if got := p.logs.FilterMessageSnippet("dead letter could not be written").Len(); got != 1 {
			t.Errorf("got %d lines, want 1", got)
		}
		if got := m.counts["x"]; got.Failed != 1 || got.Dead != 0 {
			t.Errorf("got counted %+v, want a failure and no dead letter", got)
		}
	})
}

// notBuried refuses dead letters.
type notBuried struct{ *mem }

func (s notBuried) Finish(ctx context.Context, f store.Finish) ([]store.Fate, error) {
	fates, err := s.mem.Finish(ctx, f)
	for i := range fates {
		if f.Writes[i].To == job.Dead {
			fates[i] = store.NotBuried
		}
	}
	return fates, err
}

func TestLog_OneLineForAFailedJobAndNoneForADone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(1, "fails")
		m.add(1, "dies")
		m.add(1, "works")
		p := start(t, m, handlers{
			"fails": f(func(context.Context, *job.Job) error { return errBroken }),
			"dies":  f(func(context.Context, *job.Job) error { return job.Permanent(errBroken) }),
			"works": sleeps(0),
		}, 1)
		time.Sleep(900 * time.Millisecond)
		var got []string
		for _, e := range p.logs.All() {
			got = append(got, e.Level.String()+" "+e.Message)
			if e.Level >= 0 && e.ContextMap()["error"] != "it broke" {
				t.Errorf("got fields %v, want the error", e.ContextMap())
			}
		}
		want := "warn job failed, it will be tried again|error job is a dead letter|debug job done"
		if s := strings.Join(got, "|"); s != want {
			t.Errorf("got %s, want %s", s, want)
		}
		p.halt()
	})
}
