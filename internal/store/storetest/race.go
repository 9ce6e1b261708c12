package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"queued/internal/store"
	"queued/job"
)

var raceLaws = []law{
	{"Race_ThousandsOfJobsAreClaimedOnceEach", raceClaims},
	{"Race_RetriesAndDeathsLoseNothing", raceOutcomes},
	{"Race_ProducersMeetNoError", raceProducers},
	{"Race_OnlyOneReaperTakesALease", raceReapers},
	{"Race_AJobEndsOnceBetweenItsWorkerAndTheReaper", raceFinishReap},
	{"Race_ARenewedLeaseIsNotReaped", raceRenewReap},
	{"Race_ACancelledJobIsNotFinished", raceCancel},
	{"Race_ADeadLetterIsReplayedOnce", raceReplay},
}

// claimAll claims with several goroutines on each of two stores until want jobs
// have ended, and calls end with every job.
func (f *fixture) claimAll(want int, end func(s store.Store, c store.Claimed) (ended int, err error)) {
	f.t.Helper()
	var ended atomic.Int64
	deadline := time.Now().Add(time.Minute)
	f.parallel(2, func(_ int, s store.Store) error {
		var g errgroup.Group
		for range 4 {
			g.Go(func() error {
				for ended.Load() < int64(want) {
					c, err := s.Claim(f.t.Context(), request(1+rand.IntN(60)))
					if err != nil {
						return err
					}
					if len(c.Jobs) == 0 {
						if time.Now().After(deadline) {
							return fmt.Errorf("%d of %d jobs ended within a minute", ended.Load(), want)
						}
						time.Sleep(time.Millisecond)
						continue
					}
					n, err := end(s, c)
					if err != nil {
						return err
					}
					ended.Add(int64(n))
				}
				return nil
			})
		}
		return g.Wait()
	})
}

func raceClaims(t *testing.T, f *fixture) {
	const n = 2000
	jobs := make([]job.New, n)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k", Priority: i % 3}
	}
	ids := f.enqueue(jobs...)
	var mu sync.Mutex
	starts := map[int64]int{}
	f.claimAll(n, func(s store.Store, c store.Claimed) (int, error) {
		var writes []job.Write
		mu.Lock()
		for _, j := range c.Jobs {
			starts[j.ID]++
			writes = append(writes, done(j, ""))
		}
		mu.Unlock()
		return recordAll(t.Context(), s, writes, c.Token)
	})
	for _, id := range ids {
		if starts[id] != 1 {
			t.Errorf("job %d was claimed %d times", id, starts[id])
		}
	}
	if got := f.int("SELECT COUNT(*) FROM jobs WHERE status = 'done' AND attempts = 1"); got != n {
		t.Errorf("done after one attempt: got %d, want %d", got, n)
	}
	for _, table := range []string{"dead_jobs", "job_errors", "leases"} {
		if got := f.int("SELECT COUNT(*) FROM " + table); got != 0 {
			t.Errorf("rows in %s: got %d, want 0", table, got)
		}
	}
}

// recordAll finishes a batch and wants every write recorded.
func recordAll(ctx context.Context, s store.Store, writes []job.Write, token int64) (int, error) {
	fates, err := s.Finish(ctx, store.Finish{Writes: writes, Settled: []int64{token}, Owner: owner})
	for i, fate := range fates {
		if fate != store.Recorded {
			return 0, fmt.Errorf("job %d: %s", writes[i].ID, fateName(fate))
		}
	}
	return len(writes), err
}

func raceOutcomes(t *testing.T, f *fixture) {
	const n = 600
	jobs := make([]job.New, n)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k", Key: fmt.Sprintf("key-%d", i)}
	}
	f.enqueue(jobs...)
	f.claimAll(n, func(s store.Store, c store.Claimed) (int, error) {
		var writes []job.Write
		ended := 0
		for _, j := range c.Jobs {
			switch {
			case j.Attempt == 3:
				writes = append(writes, bury(j, job.ReasonMaxAttempts, "third"))
				ended++
			case j.ID%3 == 0 && rand.IntN(4) == 0:
				writes = append(writes, job.Release(j))
			case j.ID%3 != 1:
				writes = append(writes, retry(j, 0, "failed"))
			default:
				writes = append(writes, done(j, ""))
				ended++
			}
		}
		_, err := recordAll(t.Context(), s, writes, c.Token)
		return ended, err
	})
	dead, ended := f.int("SELECT COUNT(*) FROM dead_jobs"), f.int("SELECT COUNT(*) FROM jobs WHERE status = 'done'")
	if dead+ended != n || f.int("SELECT COUNT(*) FROM jobs") != ended {
		t.Errorf("done %d, dead %d, rows in jobs %d, of %d jobs", ended, dead, f.int("SELECT COUNT(*) FROM jobs"), n)
	}
	if got := f.int("SELECT COUNT(*) FROM (SELECT DISTINCT job_key FROM dead_jobs) AS d"); got != dead {
		t.Errorf("dead letters: %d of %d jobs", dead, got)
	}
	if got := f.int("SELECT COUNT(*) FROM job_errors"); got != 3*dead {
		t.Errorf("error rows: got %d, want three for each of %d dead letters", got, dead)
	}
}

// Producers insert one row at a time with the server's defaults and no code for
// repeats, while more workers than there are jobs poll the almost empty table.
func raceProducers(t *testing.T, f *fixture) {
	const producers, each = 8, 60
	stop := make(chan struct{})
	var ended atomic.Int64
	var g errgroup.Group
	stores := []store.Store{f.reopen(), f.reopen()}
	for i := range 10 {
		s := stores[i%2]
		g.Go(func() error {
			for {
				c, err := s.Claim(t.Context(), request(5))
				if err != nil {
					return fmt.Errorf("claim: %w", err)
				}
				var writes []job.Write
				for _, j := range c.Jobs {
					writes = append(writes, done(j, ""))
				}
				if len(writes) > 0 {
					if _, err := recordAll(t.Context(), s, writes, c.Token); err != nil {
						return err
					}
					ended.Add(int64(len(writes)))
					continue
				}
				select {
				case <-stop:
					return nil
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
	var p errgroup.Group
	for i := range producers {
		p.Go(func() error {
			for n := range each {
				if _, err := f.tryInsertRaw("k", cols{"idempotency_key": fmt.Sprintf("%d-%d", i, n), "priority": n % 10}); err != nil {
					return fmt.Errorf("producer %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	f.soon("every job has ended", func() bool { return ended.Load() == producers*each || t.Failed() })
	close(stop)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func raceReapers(t *testing.T, f *fixture) {
	var jobs []*job.Job
	for range 20 {
		jobs = append(jobs, f.one(job.New{}))
	}
	f.advance(time.Hour)
	var taken atomic.Int64
	f.parallel(4, func(_ int, s store.Store) error {
		for _, j := range jobs {
			fates, err := s.Reap(t.Context(), j.Token, grace, []job.Write{retry(j, time.Hour, "worker died")})
			if errors.Is(err, job.ErrLeaseLost) {
				continue
			}
			if err != nil {
				return err
			}
			if fates[0] != store.Recorded {
				return fmt.Errorf("job %d: %s", j.ID, fateName(fates[0]))
			}
			taken.Add(1)
		}
		return nil
	})
	if n := taken.Load(); n != int64(len(jobs)) {
		t.Errorf("leases taken: got %d, want %d", n, len(jobs))
	}
	if n := f.int("SELECT COUNT(*) FROM job_errors"); n != int64(len(jobs)) {
		t.Errorf("error rows: got %d, want %d", n, len(jobs))
	}
}

func raceFinishReap(t *testing.T, f *fixture) {
	var jobs []*job.Job
	for range 30 {
		jobs = append(jobs, f.one(job.New{}))
	}
	f.advance(time.Hour)
	recorded := make([]atomic.Int64, len(jobs))
	f.parallel(2, func(p int, s store.Store) error {
		for i, j := range jobs {
			var fates []store.Fate
			var err error
			if p == 0 {
				fates, err = s.Finish(t.Context(), store.Finish{Writes: []job.Write{done(j, "")}, Settled: []int64{j.Token}})
			} else {
				fates, err = s.Reap(t.Context(), j.Token, grace, []job.Write{retry(j, time.Hour, "worker died")})
			}
			if errors.Is(err, job.ErrLeaseLost) {
				continue
			}
			if err != nil {
				return err
			}
			if fates[0] == store.Recorded {
				recorded[i].Add(1)
			}
		}
		return nil
	})
	for i, j := range jobs {
		if n := recorded[i].Load(); n != 1 {
			t.Errorf("job %d, now %s, was recorded %d times", j.ID, f.state(j.ID), n)
		}
	}
}

func raceRenewReap(t *testing.T, f *fixture) {
	var jobs []*job.Job
	for range 30 {
		jobs = append(jobs, f.one(job.New{}))
	}
	f.advance(time.Hour)
	renewed, reaped := make([]atomic.Bool, len(jobs)), make([]atomic.Bool, len(jobs))
	f.parallel(2, func(p int, s store.Store) error {
		for i, j := range jobs {
			if p == 0 {
				lost, err := s.Renew(t.Context(), owner, lease, []int64{j.Token})
				if err != nil {
					return err
				}
				renewed[i].Store(len(lost) == 0)
				continue
			}
			_, err := s.Reap(t.Context(), j.Token, grace, []job.Write{retry(j, time.Hour, "worker died")})
			if err != nil && !errors.Is(err, job.ErrLeaseLost) {
				return err
			}
			reaped[i].Store(err == nil)
		}
		return nil
	})
	for i, j := range jobs {
		want := job.Running
		if reaped[i].Load() {
			want = job.Ready
		}
		if renewed[i].Load() == reaped[i].Load() || f.state(j.ID) != want {
			t.Errorf("job %d: renewed %t, reaped %t, now %s", j.ID, renewed[i].Load(), reaped[i].Load(), f.state(j.ID))
		}
	}
}

func raceCancel(t *testing.T, f *fixture) {
	var jobs []*job.Job
	for range 30 {
		jobs = append(jobs, f.one(job.New{}))
	}
	fates, cancelled := make([]store.Fate, len(jobs)), make([]bool, len(jobs))
	f.parallel(2, func(p int, s store.Store) error {
		for i, j := range jobs {
			if p == 0 {
				got, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{done(j, "")}})
				if err != nil {
					return err
				}
				fates[i] = got[0]
				continue
			}
			err := s.CancelJob(t.Context(), j.ID)
			if err != nil && !errors.Is(err, store.ErrState) {
				return err
			}
			cancelled[i] = err == nil
		}
		return nil
	})
	for i, j := range jobs {
		want := job.Done
		if cancelled[i] {
			want = job.Cancelled
		}
		if cancelled[i] == (fates[i] == store.Recorded) || f.state(j.ID) != want {
			t.Errorf("job %d: %s, cancelled %t, now %s", j.ID, fateName(fates[i]), cancelled[i], f.state(j.ID))
		}
	}
}

func raceReplay(t *testing.T, f *fixture) {
	var writes []job.Write
	for range 20 {
		writes = append(writes, bury(f.one(job.New{}), job.ReasonPermanent, "no"))
	}
	f.finish(store.Recorded, writes...)
	dead := f.dead()
	var replayed atomic.Int64
	f.parallel(3, func(_ int, s store.Store) error {
		for _, d := range dead {
			_, err := s.ReplayDead(t.Context(), d.ID)
			switch {
			case err == nil:
				replayed.Add(1)
			case !errors.Is(err, store.ErrState):
				return err
			}
		}
		return nil
	})
	if n, rows := replayed.Load(), f.int("SELECT COUNT(*) FROM jobs"); n != int64(len(dead)) || rows != n {
		t.Errorf("replayed %d, rows in jobs %d, of %d dead letters", n, rows, len(dead))
	}
}
