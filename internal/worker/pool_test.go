package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"queued/internal/store"
	"queued/job"
)

func TestNew_ReportsEveryViolation(t *testing.T) {
	valid := func() Config { return Config{Lanes: []Lane{{"q", 1}}, Handlers: handlers{}, Owner: 1} }
	if _, err := New(valid(), newMem()); err != nil {
		t.Fatalf("got %v for a valid configuration, want nil", err)
	}
	for want, change := range map[string]func(*Config){
		"lease of 20s must be at least 3 heartbeats of 10s": func(c *Config) { c.Lease = 20 * time.Second },
		"lease of 30s must be at least 3 heartbeats of 11s": func(c *Config) { c.Heartbeat = 11 * time.Second },
		"poll interval must not be negative":                func(c *Config) { c.PollInterval = -1 },
		"shutdown timeout must not be negative":             func(c *Config) { c.ShutdownTimeout = -1 },
		"cancel grace must not be negative":                 func(c *Config) { c.CancelGrace = -1 },
		"lanes must not be empty":                           func(c *Config) { c.Lanes = nil },
		`lanes must name each queue once (got "q")`:         func(c *Config) { c.Lanes = []Lane{{"q", 1}, {"q", 2}} },
		`lanes must name each queue once (got "")`:          func(c *Config) { c.Lanes[0].Queue = "" },
		`(queue "q" has 0)`:                                 func(c *Config) { c.Lanes[0].Workers = 0 },
		"handlers must be set":                              func(c *Config) { c.Handlers = nil },
		"owner must not be 0":                               func(c *Config) { c.Owner = 0 },
		"max jobs must not be negative":                     func(c *Config) { c.MaxJobs = -1 },
		"max jobs spread must be between 0 and 1":           func(c *Config) { c.MaxJobsSpread = 1.1 },
	} {
		c := valid()
		change(&c)
		if _, err := New(c, newMem()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, err := New(Config{Lease: -1}, newMem())
	if got := strings.Count(err.Error(), "must"); got < 4 {
		t.Errorf("got %q, want all violations at once", err)
	}
}

func TestStop_WhatEndsInTimeIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(20, "x")
		p := start(t, m, handlers{"x": f(func(ctx context.Context, j *job.Job) error {
			return sleeps(time.Second+time.Duration(j.ID)*100*time.Millisecond).(job.HandlerFunc)(ctx, j)
		})}, 20)
		time.Sleep(time.Second)
		began := time.Now()
		if got := p.halt(); got != ReasonAsked {
			t.Errorf("got %q, want %q", got, ReasonAsked)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("got stopped after %s, want as soon as the last job ended, 2s", took)
		}
		if got := m.states()[job.Done]; got != 20 {
			t.Errorf("got %d done, want 20", got)
		}
		if m.held() != 0 || m.counts["x"].Done != 20 {
			t.Errorf("got %d leases left, %d counted, want 0 and 20", m.held(), m.counts["x"].Done)
		}
	})
}

func TestStop_CutOffAndUnstartedJobsGoBackUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(1000, "fast")
		slow := m.add(2, "slow")
		m.add(100, "fast")
		var why causes
		p := start(t, m, handlers{"fast": sleeps(time.Millisecond), "slow": f(func(ctx context.Context, j *job.Job) error {
			<-ctx.Done()
			why.note(ctx, j)
			return errBroken
		})}, 2)
		for p.State().Lanes[0].Buffered < 50 || p.State().OldestRun < 500*time.Millisecond {
			time.Sleep(10 * time.Millisecond)
		}
		ended := make(chan struct{})
		go func() { p.halt(); close(ended) }()
		time.Sleep(10 * time.Millisecond)
		if got := m.states(); got[job.Running] != 2 {
			t.Errorf("got %v right after the stop, want all but the two slow ones handed back at once", got)
		}
		began := time.Now()
		<-ended
		if took := time.Since(began); took != 30*time.Second-10*time.Millisecond || !errors.Is(why.of(slow[0]), job.ErrShutdown) {
			t.Errorf("got cut off after %s for %v, want 30s and %v", took, why.of(slow[0]), job.ErrShutdown)
		}
		for id := range m.rows {
			if r := m.get(id); r.state == job.Ready && (r.Attempt != 0 || !r.due.Equal(r.AvailableAt) || len(r.errors) > 0) {
				t.Errorf("job %d: got attempt %d, due %s, want its attempt and place as before", id, r.Attempt, r.due)
			}
		}
		if m.get(slow[0]).state != job.Ready || m.held() != 0 {
			t.Errorf("got %s, %d leases, want ready and none", m.get(slow[0]).state, m.held())
		}
	})
}

func TestStop_HurryCancelsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(3, "slow")
		p := start(t, m, handlers{"slow": sleeps(time.Minute)}, 3)
		time.Sleep(time.Second)
		p.stop()
		time.Sleep(2 * time.Second)
		p.Hurry()
		p.Hurry()
		<-p.reason
		if got := time.Since(p.State().LastPoll); got > 3*time.Second {
			t.Errorf("got stopped late, %s after the last poll", got)
		}
		if got := m.states()[job.Ready]; got != 3 {
			t.Errorf("got %v, want all three back", m.states())
		}
	})
}

func TestStop_HandlerThatIgnoresItIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		stuck := m.add(1, "stuck")[0]
		m.add(1, "x")
		release := make(chan struct{})
		p := start(t, m, handlers{"stuck": f(func(context.Context, *job.Job) error { <-release; return nil }), "x": sleeps(time.Minute)}, 2)
		time.Sleep(time.Second)
		began := time.Now()
		p.halt()
		if took := time.Since(began); took != 35*time.Second {
			t.Errorf("got stopped after %s, want shutdown timeout and grace, 35s", took)
		}
		if got := m.states(); got[job.Running] != 1 || got[job.Ready] != 1 {
			t.Errorf("got %v, want one back and one left to its lease", got)
		}
		if lines := p.logs.FilterMessageSnippet("abandoned").All(); len(lines) != 1 || lines[0].ContextMap()["job_id"] != stuck {
			t.Errorf("got %v, want one line with the id", lines)
		}
		if m.held() != 1 {
			t.Errorf("got %d leases, want the one that the reaper finds the job by", m.held())
		}
		close(release)
		synctest.Wait()
		if got := m.get(stuck).writes; got != 0 {
			t.Errorf("got %d writes after the pool has gone, want none", got)
		}
	})
}

func TestStop_JobsOfAClaimUnderWayGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(5, "x")
		m.onClaim = func(int) error { time.Sleep(time.Second); return nil }
		ran := false
		p := start(t, deaf{m}, handlers{"x": f(func(context.Context, *job.Job) error { ran = true; return nil })}, 5)
		time.Sleep(500 * time.Millisecond)
		p.halt()
		if got := m.states(); got[job.Ready] != 5 || ran || len(m.claimed) != 1 {
			t.Errorf("got %v, want all 5 back unrun", got)
		}
	})
}

// deaf is a store whose claim, once under way, does not heed a cancel.
type deaf struct{ *mem }

func (s deaf) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	return s.mem.Claim(context.WithoutCancel(ctx), req)
}

func TestStop_BeforeStartAndTwiceIsLegal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Lanes: []Lane{{"q", 4}}, Handlers: handlers{}, Owner: 1}, newMem())
		if err != nil {
			t.Fatal(err)
		}
		p.Hurry()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		cancel()
		if got := p.Run(ctx); got != ReasonAsked {
			t.Errorf("got %q, want %q", got, ReasonAsked)
		}
	})
}

// TestPool_StartStopStress stops pools at random moments of real time and checks
// that no job is lost or held.
func TestPool_StartStopStress(t *testing.T) {
	m := newMem()
	m.add(20_000, "x")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				p, err := New(Config{Lanes: []Lane{{"q", 1 + i}}, Handlers: handlers{"x": sleeps(0)}, Owner: int64(i + 1)}, m)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				p.Run(ctx)
				cancel()
				for _, l := range p.State().Lanes {
					if l.Running+l.Buffered > 0 {
						t.Errorf("got %d running, %d buffered in a stopped pool", l.Running, l.Buffered)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := m.states()[job.Running]; got != 0 {
		t.Errorf("got %d jobs held by stopped pools, want none", got)
	}
	for id := range m.rows {
		if r := m.get(id); r.state == job.Ready && r.Attempt != 0 || r.state == job.Done && r.Attempt != 1 {
			t.Errorf("job %d: got %s, attempt %d", id, r.state, r.Attempt)
		}
	}
	if m.held() != 0 {
		t.Errorf("got %d leases left, want none", m.held())
	}
}

// TestPool_RandomTroubleLosesNothing lets two pools and a reaper work on jobs of
// all kinds over a store that fails at random, before and after the effect.
func TestPool_RandomTroubleLosesNothing(t *testing.T) {
	for range 5 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomTrouble(t, seed) })
		})
	}
}

func randomTrouble(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	chance := func(p float64) bool {
		mu.Lock()
		defer mu.Unlock()
		return rnd.Float64() < p
	}
	m := newMem()
	trouble := func() error {
		for _, e := range []error{store.ErrUnavailable, store.ErrConflict, store.ErrUnavailable} {
			if chance(0.03) {
				time.Sleep(time.Second)
				return e
			}
		}
		return nil
	}
	m.onClaim = func(int) error { return trouble() }
	m.onRenew = func(int) error { return trouble() }
	m.onVerify = func(int) error { return trouble() }
	m.onFinish = func(int, store.Finish) error { return trouble() }
	m.onWrote = func(int) error { return trouble() }

	var starts [601]atomic.Int32
	for i := range 600 {
		kind := []string{"fast", "fast", "slow", "fails", "stuck", "unknown"}[i%6]
		m.put(job.Job{Kind: kind, Timeout: 20 * time.Second})
	}
	started := func(h job.HandlerFunc) job.Handler {
		return f(func(ctx context.Context, j *job.Job) error { starts[j.ID].Add(1); return h(ctx, j) })
	}
	h := handlers{
		"fast":  started(func(context.Context, *job.Job) error { return nil }),
		"slow":  started(sleeps(15 * time.Second).(job.HandlerFunc)),
		"fails": started(func(context.Context, *job.Job) error { return errBroken }),
		"stuck": started(func(context.Context, *job.Job) error { time.Sleep(2 * time.Minute); return errBroken }),
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for owner := range 2 {
		wg.Go(func() {
			for {
				p, err := New(Config{Lanes: []Lane{{"q", 20}}, Handlers: h, Owner: int64(owner + 1), UnknownKindGrace: time.Minute}, m)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				p.Run(ctx)
				cancel()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 3600 {
		time.Sleep(time.Second)
		m.reap()
		if n := m.states(); n[job.Done]+n[job.Dead] == 600 {
			break
		}
	}
	close(stop)
	wg.Wait()
	time.Sleep(5 * time.Minute) // abandoned handlers end
	if n := m.states(); n[job.Done]+n[job.Dead] != 600 || n[job.Dead] != 300 {
		t.Errorf("got %v, want 300 done, 300 dead", n)
	}
	for id, r := range m.rows {
		if got := int(starts[id].Load()); got > r.Attempt || r.Attempt > 4 {
			t.Errorf("job %d (%s): got %d starts, attempt %d, want starts <= attempts <= max+1", id, r.Kind, got, r.Attempt)
		}
	}
}
