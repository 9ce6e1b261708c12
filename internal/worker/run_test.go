package worker

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"queued/internal/store"
	"queued/job"
)

func TestRun_OutcomesAreWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		run   func(ctx context.Context, j *job.Job) error
		state job.State
		tries int
		error string
		count store.Count
	}{
		"nil":          {func(context.Context, *job.Job) error { return nil }, job.Done, 1, "", store.Count{Done: 1}},
		"error":        {func(context.Context, *job.Job) error { return errBroken }, job.Ready, 1, "it broke", store.Count{Failed: 1}},
		"permanent":    {func(context.Context, *job.Job) error { return job.Permanent(errBroken) }, job.Dead, 1, "it broke", store.Count{Failed: 1, Dead: 1}},
		"snooze":       {func(context.Context, *job.Job) error { return job.Snooze(time.Hour) }, job.Ready, 0, "", store.Count{}},
		"panic":        {func(context.Context, *job.Job) error { panic("boom") }, job.Ready, 1, "panic: boom\n\ngoroutine", store.Count{Failed: 1}},
		"panic nil":    {func(context.Context, *job.Job) error { panic(nil) }, job.Ready, 1, "panic: ", store.Count{Failed: 1}},
		"panic error":  {func(context.Context, *job.Job) error { panic(job.Permanent(errBroken)) }, job.Ready, 1, "panic: it broke", store.Count{Failed: 1}},
		"goexit":       {func(context.Context, *job.Job) error { runtime.Goexit(); return nil }, job.Ready, 1, "handler called runtime.Goexit", store.Count{Failed: 1}},
		"empty error":  {func(context.Context, *job.Job) error { return errors.New("") }, job.Ready, 1, "failed without a message", store.Count{Failed: 1}},
		"deep stack":   {func(context.Context, *job.Job) error { return deep(500) }, job.Ready, 1, "panic: deep", store.Count{Failed: 1}},
		"timeout":      {func(ctx context.Context, _ *job.Job) error { <-ctx.Done(); return ctx.Err() }, job.Ready, 1, "timed out after 1m0s", store.Count{Failed: 1}},
		"done in time": {func(ctx context.Context, _ *job.Job) error { <-ctx.Done(); return nil }, job.Done, 1, "", store.Count{Done: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMem()
				id := m.put(job.Job{Kind: "x", AvailableAt: time.Now().Add(time.Second)})
				next := m.put(job.Job{Kind: "next", AvailableAt: time.Now().Add(2 * time.Second)})
				p := start(t, m, handlers{
					"x": f(func(ctx context.Context, j *job.Job) error {
						if j.Attempt > 1 {
							<-ctx.Done() // only the first attempt is looked at
							return ctx.Err()
						}
						return tc.run(ctx, j)
					}),
					"next": sleeps(0),
				}, 1)
				time.Sleep(1500 * time.Millisecond)
				if p.State().OldestRun > 0 {
					time.Sleep(time.Minute)
				}
				r := m.get(id)
				if r.state != tc.state || r.Attempt != tc.tries || r.writes != 1 {
					t.Errorf("got %s, attempt %d, %d writes, want %s, %d, 1", r.state, r.Attempt, r.writes, tc.state, tc.tries)
				}
				if !strings.HasPrefix(r.write.Error, tc.error) || (tc.error == "") != (r.write.Error == "") || len(r.write.Error) > job.ErrorLimit {
					t.Errorf("got error %q, want one that begins with %q", r.write.Error, tc.error)
				}
				time.Sleep(3 * time.Second)
				p.Hurry()
				p.halt()
				if got := m.get(next).state; tc.state != job.Ready && got != job.Done {
					t.Errorf("got the next job %s, want done: the place must be free", got)
				}
				got := m.counts["x"]
				if got.Done != tc.count.Done || got.Failed != tc.count.Failed || got.Dead != tc.count.Dead {
					t.Errorf("got counted %+v, want %+v", got, tc.count)
				}
			})
		})
	}
}

func deep(n int) error {
	if n == 0 {
		panic("deep")
	}
	return errors.Join(deep(n - 1))
}

func TestRun_HandlerSeesJobDeadlineAndCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.put(job.Job{Kind: "x", Key: "order-1", Attempt: 1, Timeout: 3 * time.Second})
		seen := make(chan struct{})
		p := start(t, m, handlers{"x": f(func(ctx context.Context, j *job.Job) error {
			defer close(seen)
			if j.Attempt != 2 || j.JobKey() != "order-1" {
				t.Errorf("got attempt %d of %q, want 2 of order-1", j.Attempt, j.JobKey())
			}
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != 3*time.Second {
				t.Errorf("got a deadline in %s, want 3s", time.Until(d))
			}
			child, cancel := context.WithTimeout(context.WithValue(ctx, t, 1), time.Hour)
			defer cancel()
			began := time.Now()
			<-child.Done()
			if got := time.Since(began); got != 3*time.Second {
				t.Errorf("got cancelled after %s, want 3s", got)
			}
			if got := context.Cause(child); !errors.Is(got, job.ErrTimeout) {
				t.Errorf("got cause %v, want %v", got, job.ErrTimeout)
			}
			return child.Err()
		})}, 1)
		<-seen
		p.halt()
	})
}

func TestRun_ShortTimeoutBehindLongOneIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.put(job.Job{Kind: "x", Timeout: time.Hour})
		short := m.put(job.Job{Kind: "hangs", Timeout: 2 * time.Second})
		long := m.put(job.Job{Kind: "hangs", Timeout: 20 * time.Minute})
		p := start(t, m, handlers{"x": sleeps(time.Second), "hangs": sleeps(10 * time.Minute)}, 1)
		time.Sleep(5 * time.Second)
		if r := m.get(short); r.write.Error != "timed out after 2s" {
			t.Errorf("got error %q, want a timeout", r.write.Error)
		}
		time.Sleep(11 * time.Minute)
		if got := m.get(long).state; got != job.Done {
			t.Errorf("got the long job %s, want done", got)
		}
		p.Hurry()
		p.halt()
	})
}

func TestRun_ExpiredJobIsNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		now := time.Now()
		past := m.put(job.Job{Kind: "x", ExpiresAt: now})
		future := m.put(job.Job{Kind: "x", ExpiresAt: now.Add(time.Second)})
		p := start(t, m, handlers{"x": sleeps(0)}, 2)
		time.Sleep(100 * time.Millisecond)
		p.halt()
		if r := m.get(past); r.state != job.Dead || r.write.Reason != job.ReasonExpired {
			t.Errorf("got %s for %q, want dead for %q", r.state, r.write.Reason, job.ReasonExpired)
		}
		if r := m.get(future); r.state != job.Done {
			t.Errorf("got %s, want done", r.state)
		}
	})
}

func TestRun_ExpiryIsJudgedByTheStoresClock(t *testing.T) {
	now := time.Now()
	r := &run{job: &job.Job{ClaimedAt: now.Add(-time.Hour)}, lease: &lease{claimed: now}}
	if got, want := r.now(now.Add(time.Second)), now.Add(time.Second-time.Hour); !got.Equal(want) {
		t.Errorf("got %s, want %s: this host's clock must not count", got, want)
	}
}

func TestRun_HandlerThatIgnoresItsTimeoutKeepsItsPlaceAndLosesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		stuck := m.put(job.Job{Kind: "stuck", Timeout: 20 * time.Second})
		release := make(chan struct{})
		p := start(t, m, handlers{"stuck": f(func(_ context.Context, j *job.Job) error {
			if j.Attempt == 1 {
				<-release
				return errBroken
			}
			return nil
		}), "x": sleeps(0)}, 1)
		time.Sleep(24 * time.Second)
		if got := p.State().Overdue; got != 0 {
			t.Errorf("got %d overdue within the grace, want 0", got)
		}
		time.Sleep(2 * time.Second)
		if got := p.State().Overdue; got != 1 {
			t.Errorf("got %d overdue past the grace, want 1", got)
		}
		if got := p.logs.FilterMessageSnippet("ignores its cancel").Len(); got != 1 {
			t.Errorf("got %d lines about it, want 1", got)
		}
		waits := m.add(1, "x")[0]
		m.reap()
		if got := m.get(stuck).state; got != job.Running {
			t.Errorf("got %s before the lease ended, want running", got)
		}
		time.Sleep(30 * time.Second)
		m.reap()
		if r := m.get(stuck); r.state != job.Ready || r.Attempt != 1 {
			t.Errorf("got %s, attempt %d, want the lease left to run out and the job taken", r.state, r.Attempt)
		}
		if got := m.get(waits).state; got != job.Ready {
			t.Errorf("got the next job %s, want ready: the place is taken", got)
		}
		close(release)
		time.Sleep(10 * time.Second)
		if r := m.get(stuck); r.state != job.Done || r.Attempt != 2 || r.writes != 1 {
			t.Errorf("got %s, attempt %d, %d writes, want the late end of attempt 1 unwritten and the second done", r.state, r.Attempt, r.writes)
		}
		if got := m.get(waits).state; got != job.Done {
			t.Errorf("got the next job %s, want done", got)
		}
		if got := p.State().Overdue; got != 0 {
			t.Errorf("got %d overdue at the end, want 0", got)
		}
		p.halt()
	})
}

func TestRun_LeaseSharedWithAStuckHandlerIsRenewedForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.put(job.Job{Kind: "stuck", Timeout: time.Second})
		good := m.put(job.Job{Kind: "good", Timeout: time.Hour})
		release := make(chan struct{})
		p := start(t, m, handlers{
			"stuck": f(func(context.Context, *job.Job) error { <-release; return nil }),
			"good":  sleeps(10 * time.Minute),
		}, 2)
		for range 10 * 60 {
			time.Sleep(time.Second)
			m.reap()
		}
		close(release)
		time.Sleep(time.Second)
		p.halt()
		if r := m.get(good); r.state != job.Done || r.Attempt != 1 {
			t.Errorf("got %s, attempt %d, want done in one attempt", r.state, r.Attempt)
		}
	})
}

func TestRun_LeaseIsCheckedBeforeEachStart(t *testing.T) {
	// As after a SIGSTOP: the jobs were claimed long ago.
	p, err := New(Config{Lanes: []Lane{{"q", 1}}, Handlers: handlers{}, Owner: 1}, newMem())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	gone := &lease{token: 1, claimed: now.Add(-time.Minute), until: now, left: 2}
	live := &lease{token: 2, claimed: now, until: now.Add(time.Minute), left: 1}
	p.leases[1], p.leases[2], p.open = gone, live, 3
	for i, ls := range []*lease{gone, gone, live} {
		p.lanes[0].buffer.push(&run{job: &job.Job{ID: int64(i + 1)}, lease: ls, lane: p.lanes[0], policy: testPolicy})
	}
	r := p.next(p.slots[0])
	defer p.slots[0].timer.Stop()
	if r == nil || r.job.ID != 3 {
		t.Errorf("got job %v started, want 3, the one whose lease can be proven", r)
	}
	if len(p.out.writes) != 2 || !p.out.writes[0].Uncount || !p.out.writes[0].KeepDue {
		t.Errorf("got writes %+v, want the others handed back uncounted", p.out.writes)
	}
}
