package worker_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"queued/internal/reaper"
	"queued/internal/store"
	"queued/internal/store/sqlite"
	"queued/internal/worker"
	"queued/job"
)

// These tests run the pool and the reaper on a real store, in real time.

type handlers map[string]job.HandlerFunc

var policy = job.Policy{MaxAttempts: 3, Timeout: time.Minute, Backoff: job.Backoff{Base: time.Millisecond, Cap: time.Second}}

func (h handlers) Lookup(kind string) (job.Handler, job.Policy, bool) {
	f, ok := h[kind]
	return f, policy, ok
}

func (h handlers) Kinds() []string { return nil }

func open(t *testing.T, file string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(file, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func enqueue(t *testing.T, s store.Enqueuer, n int, kind string) []int64 {
	t.Helper()
	jobs := make([]job.New, n)
	for i := range jobs {
		jobs[i] = job.New{Kind: kind, Queue: "q"}
	}
	got, err := s.Enqueue(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, n)
	for i := range got {
		ids[i] = got[i].ID
	}
	return ids
}

// run runs f in the background until the test ends.
func run(t *testing.T, f func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

func pool(t *testing.T, s worker.Store, owner int64, lease time.Duration, h handlers) (stop func()) {
	t.Helper()
	p, err := worker.New(worker.Config{
		Lanes: []worker.Lane{{Queue: "q", Workers: 8}}, Handlers: h, Owner: owner,
		Lease: lease, Heartbeat: 100 * time.Millisecond,
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, func(ctx context.Context) { p.Run(ctx) })
}

func reap(t *testing.T, s reaper.Store) {
	t.Helper()
	r, err := reaper.New(reaper.Config{Policies: handlers{}, Default: policy, Owner: 99, Lease: time.Second, Interval: 50 * time.Millisecond, Grace: time.Millisecond}, s)
	if err != nil {
		t.Fatal(err)
	}
	run(t, r.Run)
}

// until waits for ok, which is a matter of milliseconds on an idle machine.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got no end of waiting for %s", what)
		}
	}
}

func state(t *testing.T, s store.Inspector, id int64) (job.State, int) {
	t.Helper()
	r, err := s.GetJob(t.Context(), id)
	if errors.Is(err, store.ErrNotFound) {
		return job.Dead, 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.State, r.Attempts
}

func TestSQLite_EveryJobOfThreePoolsEndsOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queued.db")
	s := open(t, file)
	const n = 300
	ids := enqueue(t, s, n, "good")
	bad := enqueue(t, s, 50, "bad")
	ids = append(ids, enqueue(t, s, n, "good")...)
	runs := map[int64]*atomic.Int32{}
	for _, id := range append(ids, bad...) {
		runs[id] = new(atomic.Int32)
	}
	h := handlers{
		"good": func(_ context.Context, j *job.Job) error { runs[j.ID].Add(1); return nil },
		"bad":  func(_ context.Context, j *job.Job) error { runs[j.ID].Add(1); panic("bad job") },
	}
	var stops []func()
	for owner := range 3 {
		stops = append(stops, pool(t, open(t, file), int64(owner+1), time.Minute, h))
	}
	until(t, "all jobs to end", func() bool {
		st, err := s.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(st) == 1 && st[0].Due+st[0].Scheduled+st[0].Running == 0
	})
	for _, stop := range stops {
		stop()
	}
	for _, id := range ids {
		if st, attempts := state(t, s, id); st != job.Done || attempts != 1 || runs[id].Load() != 1 {
			t.Errorf("job %d: got %s after %d attempts and %d runs, want done, 1, 1", id, st, attempts, runs[id].Load())
		}
	}
	for _, id := range bad {
		if st, _ := state(t, s, id); st != job.Dead || runs[id].Load() != 3 {
			t.Errorf("job %d: got %s after %d runs, want dead after 3", id, st, runs[id].Load())
		}
	}
	st, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st[0].Done != 2*n || st[0].Failed != 150 || st[0].Buried != 50 {
		t.Errorf("got counters %+v, want %d done, 150 failed, 50 dead", st[0], 2*n)
	}
}

// cutOff is a store whose leases can't be renewed, as by a process that has
// been stopped or lost its network.
type cutOff struct{ *sqlite.Store }

func (cutOff) Renew(context.Context, int64, time.Duration, []int64) ([]int64, error) {
	return nil, fmt.Errorf("renew: %w", store.ErrUnavailable)
}

func TestSQLite_StalledWorkersJobIsTakenOverAndItsLateEndNotWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queued.db")
	s := open(t, file)
	id := enqueue(t, s, 1, "x")[0]
	release, started := make(chan struct{}), make(chan struct{})
	var cause error
	stopA := pool(t, cutOff{open(t, file)}, 1, time.Second, handlers{"x": func(ctx context.Context, _ *job.Job) error {
		close(started)
		<-ctx.Done()
		cause = context.Cause(ctx)
		<-release
		return errors.New("too late")
	}})
	<-started
	stopA2 := run(t, func(context.Context) { stopA() }) // claims nothing more
	reap(t, s)
	pool(t, open(t, file), 2, time.Minute, handlers{"x": func(_ context.Context, j *job.Job) error {
		if j.Attempt != 2 {
			return fmt.Errorf("attempt %d", j.Attempt)
		}
		return nil
	}})
	until(t, "the takeover", func() bool { st, _ := state(t, s, id); return st == job.Done })
	close(release)
	stopA2()
	if !errors.Is(cause, job.ErrLeaseLost) {
		t.Errorf("got cause %v, want %v", cause, job.ErrLeaseLost)
	}
	if st, attempts := state(t, s, id); st != job.Done || attempts != 2 {
		t.Errorf("got %s after %d attempts, want done after 2", st, attempts)
	}
	errs, err := s.Errors(t.Context(), key(t, s, id))
	if err != nil || len(errs) != 1 || errs[0].Attempt != 1 {
		t.Errorf("got errors %v, %v, want one of attempt 1 by the reaper", errs, err)
	}
}

func key(t *testing.T, s store.Inspector, id int64) string {
	t.Helper()
	r, err := s.GetJob(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r.JobKey()
}

func TestSQLite_CancelledJobsHandlerIsToldWithinAHeartbeat(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "queued.db"))
	id := enqueue(t, s, 1, "x")[0]
	started, told := make(chan struct{}), make(chan error, 1)
	stop := pool(t, s, 1, time.Minute, handlers{"x": func(ctx context.Context, _ *job.Job) error {
		close(started)
		<-ctx.Done()
		told <- context.Cause(ctx)
		return nil
	}})
	<-started
	if err := s.CancelJob(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := <-told; !errors.Is(got, job.ErrCancelled) {
		t.Errorf("got cause %v, want %v", got, job.ErrCancelled)
	}
	stop()
	if st, _ := state(t, s, id); st != job.Cancelled {
		t.Errorf("got %s, want cancelled", st)
	}
}
