package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"queued/internal/store"
	"queued/job"
)

// shortLease is the smallest configuration that makes sense.
func shortLease(c *Config) { c.Lease, c.Heartbeat = 6*time.Second, 2*time.Second }

func TestLease_IsRenewedWhileAJobRunsOrWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		starts := 0
		id := m.put(job.Job{Kind: "long", Timeout: 2 * time.Hour})
		p := start(t, m, handlers{"long": f(func(context.Context, *job.Job) error {
			starts++
			time.Sleep(time.Hour)
			return nil
		})}, 2, shortLease)
		for range 3700 {
			time.Sleep(time.Second)
			m.reap()
		}
		p.halt()
		if r := m.get(id); starts != 1 || r.state != job.Done || r.Attempt != 1 {
			t.Errorf("got %d starts, %s, attempt %d, want one run of an hour", starts, r.state, r.Attempt)
		}
		if m.held() != 0 {
			t.Errorf("got %d leases left, want none", m.held())
		}
	})
}

func TestLease_RunThatCantProveItIsCancelledBeforeItEnds(t *testing.T) {
	for name, renew := range map[string]func(int) error{
		"fails": func(int) error { return store.ErrUnavailable },
		"hangs": func(int) error { time.Sleep(time.Minute); return store.ErrUnavailable },
		"fails after two": func(n int) error {
			if n > 2 {
				return store.ErrUnavailable
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMem()
				m.onRenew = renew
				m.onFinish = func(int, store.Finish) error { return nil }
				id := m.put(job.Job{Kind: "long", Timeout: time.Hour})
				var why causes
				var over atomic.Bool
				p := start(t, leaseContext{m}, handlers{"long": f(func(ctx context.Context, j *job.Job) error {
					if j.Attempt > 1 {
						return nil
					}
					<-ctx.Done()
					why.note(ctx, j)
					m.mu.Lock()
					over.Store(!time.Now().Before(m.leases[j.Token].until))
					m.mu.Unlock()
					return ctx.Err()
				})}, 1, shortLease)
				time.Sleep(30 * time.Second)
				if got := why.of(id); !errors.Is(got, job.ErrLeaseLost) || over.Load() {
					t.Errorf("got cause %v, lease over %t, want %v while the lease still holds", got, over.Load(), job.ErrLeaseLost)
				}
				if r := m.get(id); r.writes != 0 || r.state != job.Running {
					t.Errorf("got %d writes, %s, want nothing written and the row left to the reaper", r.writes, r.state)
				}
				m.reap()
				time.Sleep(time.Minute)
				if r := m.get(id); r.state != job.Done || r.Attempt != 2 {
					t.Errorf("got %s, attempt %d, want done at the second attempt", r.state, r.Attempt)
				}
				p.halt()
			})
		})
	}
}

// leaseContext is a mem whose Renew obeys its context, as the contract asks.
type leaseContext struct{ *mem }

func (s leaseContext) Renew(ctx context.Context, owner int64, lease time.Duration, tokens []int64) ([]int64, error) {
	type answer struct {
		lost []int64
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		lost, err := s.mem.Renew(ctx, owner, lease, tokens)
		c <- answer{lost, err}
	}()
	select {
	case a := <-c:
		return a.lost, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("renew: %w", store.ErrUnavailable)
	}
}

func TestLease_ShortOutageOfRenewalsCancelsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		from := time.Now().Add(30 * time.Second)
		m.onRenew = func(int) error {
			if since := time.Since(from); since >= 0 && since < 2500*time.Millisecond {
				return store.ErrUnavailable
			}
			return nil
		}
		id := m.put(job.Job{Kind: "long", Timeout: time.Hour})
		p := start(t, m, handlers{"long": sleeps(2 * time.Minute)}, 1, shortLease)
		time.Sleep(3 * time.Minute)
		p.halt()
		if r := m.get(id); r.state != job.Done || r.Attempt != 1 {
			t.Errorf("got %s, attempt %d, want done in one", r.state, r.Attempt)
		}
	})
}

func TestRenew_LeaseThatIsGoneCancelsItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		ids := m.add(2, "long")
		var why causes
		p := start(t, m, handlers{"long": f(func(ctx context.Context, j *job.Job) error {
			<-ctx.Done()
			why.note(ctx, j)
			return errBroken
		})}, 2, shortLease)
		time.Sleep(time.Second)
		m.mu.Lock()
		clear(m.leases)
		for _, id := range ids {
			r := m.rows[id]
			r.state, r.Token, r.due = job.Running, 1<<40, time.Now() // somebody else runs them
		}
		m.mu.Unlock()
		time.Sleep(3 * time.Second)
		for _, id := range ids {
			if got := why.of(id); !errors.Is(got, job.ErrLeaseLost) {
				t.Errorf("got cause %v within a heartbeat, want %v", got, job.ErrLeaseLost)
			}
		}
		p.halt()
		for _, id := range ids {
			if r := m.get(id); r.writes != 0 {
				t.Errorf("got %d writes, want none", r.writes)
			}
		}
		if got := p.logs.FilterMessageSnippet("lease lost").Len(); got != 2 {
			t.Errorf("got %d lines, want one for each job", got)
		}
	})
}

func TestVerify_JobChangedFromOutsideIsCancelledWithoutAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		ids := m.add(2, "long")
		var why causes
		p := start(t, m, handlers{"long": f(func(ctx context.Context, j *job.Job) error {
			select {
			case <-ctx.Done():
			case <-time.After(30 * time.Second):
			}
			why.note(ctx, j)
			return nil
		})}, 2, shortLease)
		time.Sleep(10 * time.Second)
		m.change(ids[0], func(r *row) { r.state = job.Cancelled })
		time.Sleep(3 * time.Second)
		if !errors.Is(why.of(ids[0]), job.ErrCancelled) {
			t.Errorf("got cause %v within a heartbeat, want %v", why.of(ids[0]), job.ErrCancelled)
		}
		time.Sleep(30 * time.Second)
		p.halt()
		if r := m.get(ids[0]); r.state != job.Cancelled || r.writes != 0 {
			t.Errorf("got %s, %d writes, want cancelled and untouched", r.state, r.writes)
		}
		if r := m.get(ids[1]); r.state != job.Done || why.of(ids[1]) != nil {
			t.Errorf("got the other job %s, cause %v, want done", r.state, why.of(ids[1]))
		}
		if m.held() != 0 {
			t.Errorf("got %d leases left, want none", m.held())
		}
	})
}

func TestVerify_AsksOnlyForLongRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		m.add(500, "short")
		p := start(t, m, handlers{"short": sleeps(time.Second)}, 10, shortLease)
		time.Sleep(time.Minute)
		p.halt()
		if m.verifies != 0 {
			t.Errorf("got %d verifications of jobs shorter than a heartbeat, want none", m.verifies)
		}
	})
}

func TestRenew_OneCallForAllLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMem()
		p := start(t, m, handlers{"long": sleeps(50 * time.Second)}, 20, shortLease)
		for range 20 {
			m.add(1, "long")
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(40 * time.Second)
		if got := m.held(); got != 20 {
			t.Errorf("got %d leases, want 20", got)
		}
		p.Hurry()
		p.halt()
		if m.renews > 22 {
			t.Errorf("got %d renewals in 42 s, want one each 2 s", m.renews)
		}
	})
}
