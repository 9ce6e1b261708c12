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

func TestClaim_SlowJobsAreNeverHoarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(10, "slow")
		p := start(t, m, handlers{"slow": sleeps(20 * time.Second)}, 1)
		time.Sleep(50 * time.Second)
		p.halt()
		if got := slices.Max(m.claimed); got != 1 {
			t.Errorf("got a claim of %d jobs for one worker, want 1 at a time", got)
		}
		if got := m.states(); got[job.Done] != 3 || got[job.Ready] != 7 {
			t.Errorf("got %v, want 3 done (the third in the stop's grace) and 7 ready", got)
		}
	})
}

func TestClaim_FastJobsAreClaimedInLargeBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onClaim = func(int) error { time.Sleep(3 * time.Millisecond); return nil }
		m.add(10_000, "fast")
		p := start(t, m, handlers{"fast": sleeps(100 * time.Microsecond)}, 16, func(c *Config) { c.Drain = true })
		if got := <-p.reason; got != ReasonDrained {
			t.Errorf("got %q, want %q", got, ReasonDrained)
		}
		if got := slices.Max(m.claimed); got != store.MaxClaim {
			t.Errorf("got batches of up to %d jobs, want %d", got, store.MaxClaim)
		}
		if m.claims > 45 {
			t.Errorf("got %d claims for 10,000 jobs, want 45 at most", m.claims)
		}
	})
}

func TestClaim_BatchIsAboutATenthOfASecondOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(2000, "mid")
		p := start(t, m, handlers{"mid": sleeps(10 * time.Millisecond)}, 4)
		time.Sleep(2 * time.Second)
		p.halt()
		if got := slices.Max(m.claimed); got > 45 {
			t.Errorf("got a claim of %d jobs of 10 ms for 4 workers, want about 40 at most", got)
		}
		if got := m.states()[job.Done]; got < 750 {
			t.Errorf("got %d jobs done in 2 s, want all workers busy (about 800)", got)
		}
	})
}

func TestClaim_BufferBehindStuckWorkersGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(400, "fast")
		m.add(1, "slow")
		m.add(400, "fast")
		p := start(t, m, handlers{"fast": sleeps(time.Millisecond), "slow": sleeps(time.Hour)}, 1)
		time.Sleep(10 * time.Second)
		got := m.states()
		if got[job.Running] != 1 || got[job.Ready] != 400 {
			t.Errorf("got %v, want only the slow job held and the 400 behind it ready for others", got)
		}
		if r := m.get(402); r.Attempt != 0 {
			t.Errorf("got attempt %d of a job that went back unstarted, want 0", r.Attempt)
		}
		p.Hurry()
		p.halt()
	})
}

func TestClaim_LargePayloadsAreNotBuffered(t *testing.T) {
	l := &lane{Lane: Lane{Workers: 2}, rate: 10_000, size: 1 << 20}
	if got, want := l.want(0), 2+8; got != want {
		t.Errorf("got %d wanted jobs of 1 MiB, want %d", got, want)
	}
}

func TestClaim_IdlePollsOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		p := start(t, m, handlers{}, 4, func(c *Config) {
			c.Lanes = []Lane{{"a", 2}, {"b", 2}, {"c", 1}}
			c.PollInterval = 50 * time.Millisecond
		})
		time.Sleep(10 * time.Second)
		p.halt()
		if m.claims < 180 || m.claims > 225 {
			t.Errorf("got %d polls of three idle lanes in 10 s, want about 200", m.claims)
		}
	})
}

func TestClaim_EmptyPollsTakeATenthOfTheTimeAtMost(t *testing.T) {
	for _, tc := range []struct {
		took time.Duration
		max  int
	}{{20 * time.Millisecond, 47}, {90 * time.Millisecond, 12}, {5 * time.Second, 3}} {
		synctest.Test(t, func(t *testing.T) {
			m := newMem()
			m.onClaim = func(int) error { time.Sleep(tc.took); return nil }
			p := start(t, m, handlers{}, 4, func(c *Config) { c.PollInterval = 50 * time.Millisecond })
			time.Sleep(10 * time.Second)
			p.halt()
			if m.claims > tc.max {
				t.Errorf("got %d polls of %s in 10 s, want %d at most", m.claims, tc.took, tc.max)
			}
		})
	}
}

func TestClaim_OneSlowPollDoesNotDelayTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.onClaim = func(n int) error {
			if n%2 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}
		p := start(t, m, handlers{}, 4)
		time.Sleep(10 * time.Second)
		p.halt()
		if m.claims < 90 {
			t.Errorf("got %d polls in 10 s, want one about each 100ms", m.claims)
		}
	})
}

func TestClaim_DueJobOfIdlePoolStartsWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		var worst time.Duration
		p := start(t, m, handlers{"x": f(func(_ context.Context, j *job.Job) error {
			worst = max(worst, time.Since(j.AvailableAt))
			return nil
		})}, 1)
		for i := range 100 {
			time.Sleep(time.Duration(100+i) * time.Millisecond)
			m.add(1, "x")
		}
		time.Sleep(time.Second)
		p.halt()
		if worst > 60*time.Millisecond {
			t.Errorf("got a pick-up after %s, want 60ms at most", worst)
		}
	})
}

func TestClaim_OutageIsWaitedOutAndSaidOnce(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, time.Minute, 15 * time.Minute} {
		for _, kind := range []error{store.ErrUnavailable, store.ErrConflict, store.ErrDenied, store.ErrSchema} {
			synctest.Test(t, func(t *testing.T) {
				m := newMem()
				from := time.Now().Add(10 * time.Second)
				m.onClaim = func(int) error {
					if since := time.Since(from); since >= 0 && since < outage {
						return fmt.Errorf("claim: %w", kind)
					}
					return nil
				}
				p := start(t, m, handlers{"x": sleeps(0)}, 2)
				time.Sleep(10*time.Second + outage/2)
				id := m.add(1, "x")[0]
				if s := p.State(); s.Down == nil || time.Since(s.LastPoll) < outage/2-time.Second || time.Since(s.ClaimTurn) > 10*time.Second {
					t.Errorf("got state %+v in an outage, want it down, its last poll from before, its loop alive", s)
				}
				time.Sleep(outage/2 + 7*time.Second)
				if r := m.get(id); r.state != job.Done || r.Attempt != 1 || len(r.errors) != 0 {
					t.Errorf("got job %s after %d attempts, want done after 1", r.state, r.Attempt)
				}
				if s := p.State(); s.Down != nil {
					t.Errorf("got down %v after the outage, want nil", s.Down)
				}
				p.halt()
				if got, most := p.logs.FilterMessageSnippet("can't claim").Len(), 1+int(outage/time.Minute); got < 1 || got > most {
					t.Errorf("got %d lines about an outage of %s, want 1 to %d", got, outage, most)
				}
				if got := p.logs.FilterMessage("claiming jobs again").Len(); got != 1 {
					t.Errorf("got %d lines about its end, want 1", got)
				}
			})
		}
	}
}

func TestClaim_BadRowIsRefusedWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		bad := m.put(job.Job{Kind: "x", Bad: "payload is not JSON"})
		over := m.put(job.Job{Kind: "x", Attempt: 3})
		most := m.put(job.Job{Kind: "x", Attempt: 1<<31 - 2, MaxAttempts: 5})
		good := m.put(job.Job{Kind: "x"})
		p := start(t, m, handlers{"x": sleeps(0)}, 1)
		time.Sleep(time.Second)
		p.halt()
		for id, want := range map[int64]string{bad: job.ReasonBadRow, over: job.ReasonMaxAttempts, most: job.ReasonMaxAttempts} {
			if r := m.get(id); r.state != job.Dead || r.write.Reason != want || r.write.Error == "" {
				t.Errorf("job %d: got %s, reason %q, error %q, want dead for %q", id, r.state, r.write.Reason, r.write.Error, want)
			}
		}
		if got := m.get(good).state; got != job.Done {
			t.Errorf("got the job behind them %s, want done", got)
		}
		if got := m.counts["(unknown)"]; got != (store.Count{}) {
			t.Errorf("got %+v counted for unknown kinds, want none", got)
		}
	})
}

func TestClaim_UnknownKindIsPutBackWhileADaemonMayKnowIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.know("elsewhere", "x")
		old := time.Now().Add(-time.Hour)
		elsewhere := m.put(job.Job{Kind: "elsewhere", CreatedAt: old})
		young := m.put(job.Job{Kind: "Nowhere"})
		aged := m.put(job.Job{Kind: "nowhere", CreatedAt: old})
		p := start(t, m, handlers{"mine": sleeps(0)}, 1)
		time.Sleep(time.Minute)
		for _, id := range []int64{elsewhere, young} {
			if r := m.get(id); r.state != job.Ready || r.Attempt != 0 || r.writes < 5 || r.writes > 20 {
				t.Errorf("job %d: got %s, attempt %d, put back %d times in a minute, want ready, 0, about 12", id, r.state, r.Attempt, r.writes)
			}
		}
		if r := m.get(aged); r.write.Reason != job.ReasonUnknownKind || !strings.Contains(r.write.Error, `"nowhere"; known kinds: elsewhere, mine, x`) {
			t.Errorf("got reason %q, error %q, want an unknown kind and the known ones named", r.write.Reason, r.write.Error)
		}
		time.Sleep(11 * time.Minute)
		if got := m.get(young).state; got != job.Dead {
			t.Errorf("got the job %s past the grace, want dead", got)
		}
		m.know("x")
		time.Sleep(time.Minute)
		if got := m.get(elsewhere).state; got != job.Dead {
			t.Errorf("got the job %s after its daemon has gone, want dead", got)
		}
		p.halt()
	})
}

func TestClaim_IsLaneByLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		for range 100 {
			m.put(job.Job{Kind: "slow", Queue: "bulk"})
		}
		p := start(t, m, handlers{"slow": sleeps(time.Minute), "fast": sleeps(0)}, 1, func(c *Config) {
			c.Lanes = []Lane{{"bulk", 2}, {"urgent", 1}}
		})
		time.Sleep(time.Second)
		id := m.put(job.Job{Kind: "fast", Queue: "urgent"})
		time.Sleep(100 * time.Millisecond)
		if got := m.get(id).state; got != job.Done {
			t.Errorf("got the urgent job %s behind a full bulk lane, want done", got)
		}
		p.Hurry()
		p.halt()
	})
}

func TestDrain_EndsWhenNothingDueIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		var failed atomic.Int32
		m.add(50, "x")
		fails := m.add(1, "fails")[0]
		later := m.put(job.Job{Kind: "x", AvailableAt: time.Now().Add(time.Hour)})
		again := m.add(1, "again")[0]
		snoozed := false
		p := start(t, m, handlers{
			"x":     sleeps(30 * time.Millisecond),
			"fails": f(func(context.Context, *job.Job) error { failed.Add(1); return errBroken }),
			"again": f(func(context.Context, *job.Job) error {
				if snoozed = !snoozed; snoozed {
					return job.Snooze(0)
				}
				return nil
			}),
		}, 4, func(c *Config) { c.Drain = true })
		if got := <-p.reason; got != ReasonDrained {
			t.Errorf("got %q, want %q", got, ReasonDrained)
		}
		if got := m.states(); got[job.Done] != 51 || got[job.Ready] != 2 {
			t.Errorf("got %v, want 51 done and 2 waiting for their time", got)
		}
		if m.get(again).state != job.Done || m.get(fails).Attempt != 1 || m.get(later).Attempt != 0 {
			t.Errorf("got %v, %v, %v, want done, failed once, not run", m.get(again), m.get(fails), m.get(later))
		}
	})
}

func TestMaxJobs_NeverStartsMore(t *testing.T) {
	for _, limit := range []int{1, 7, 100, 1500} {
		synctest.Test(t, func(t *testing.T) {
			m := newMem()
			m.add(2000, "x")
			for range 2000 {
				m.put(job.Job{Kind: "x", Queue: "r"})
			}
			var ran atomic.Int32
			p := start(t, m, handlers{"x": f(func(context.Context, *job.Job) error { ran.Add(1); return nil })}, 4, func(c *Config) {
				c.Lanes = []Lane{{"q", 8}, {"r", 8}}
				c.MaxJobs = limit
			})
			if got := <-p.reason; got != ReasonMaxJobs {
				t.Errorf("got %q, want %q", got, ReasonMaxJobs)
			}
			if got := int(ran.Load()); got != limit {
				t.Errorf("got %d jobs run, want %d", got, limit)
			}
			if got := m.states(); got[job.Done] != limit || got[job.Ready] != 4000-limit {
				t.Errorf("got %v, want %d done and the others ready", got, limit)
			}
		})
	}
}

func TestMaxJobs_OthersThatRunAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(20, "slow")
		p := start(t, m, handlers{"slow": sleeps(20 * time.Second)}, 10, func(c *Config) { c.MaxJobs = 10 })
		<-p.reason
		if got := m.states(); got[job.Done] != 10 || got[job.Ready] != 10 || m.held() != 0 {
			t.Errorf("got %v, %d leases, want 10 done, 10 ready, none", got, m.held())
		}
	})
}

func TestMaxJobs_SpreadTakesOffOnly(t *testing.T) {
	for range 100 {
		p, err := New(Config{Lanes: []Lane{{"q", 1}}, Handlers: handlers{}, Owner: 1, MaxJobs: 100, MaxJobsSpread: 0.2}, newMem())
		if err != nil {
			t.Fatal(err)
		}
		if p.max < 80 || p.max > 100 {
			t.Fatalf("got a limit of %d, want 80 to 100", p.max)
		}
	}
}
