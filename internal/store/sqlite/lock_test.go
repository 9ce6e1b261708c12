package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"queued/internal/store"
	"queued/job"
)

// lock takes the write lock as another process and returns how to give it back.
func lock(t *testing.T, s *Store) (free func()) {
	t.Helper()
	conn, err := raw(t, s.path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		_, err := conn.ExecContext(t.Context(), "COMMIT")
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

var want1 = store.ClaimRequest{Owner: 1, Lease: time.Minute, Wants: []store.Want{{Queue: "default", Limit: 1}}}

func TestWrite_WaitsForAnotherProcessesLock(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{OpTimeout: time.Minute})
	free := lock(t, s)
	done := make(chan error)
	go func() {
		_, err := s.Enqueue(context.WithoutCancel(t.Context()), []job.New{{Kind: "k"}})
		done <- err
	}()
	for s.meter.Deadlocks.Load() < 2 { // it has met the lock, and again
		select {
		case err := <-done:
			t.Fatalf("the enqueue did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	free()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWrite_OfALockHeldTooLongIsErrUnavailable(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{OpTimeout: 300 * time.Millisecond})
	put(t, s, job.New{Kind: "k"}, job.New{Kind: "k"})
	c, err := s.Claim(t.Context(), want1)
	if err != nil {
		t.Fatal(err)
	}
	defer lock(t, s)()
	for name, call := range map[string]func() error{
		"enqueue": func() error { _, err := s.Enqueue(t.Context(), []job.New{{Kind: "k"}}); return err },
		"claim":   func() error { _, err := s.Claim(t.Context(), want1); return err },
		"renew":   func() error { _, err := s.Renew(t.Context(), 1, time.Minute, []int64{c.Token}); return err },
		"finish":  func() error { _, err := s.Finish(t.Context(), store.Finish{Settled: []int64{c.Token}}); return err },
		"ping":    func() error { return s.Ping(t.Context()) },
	} {
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", name, err)
		}
	}
}

func TestRead_NeedsNoLock(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	put(t, s, job.New{Kind: "k"})
	c, err := s.Claim(t.Context(), want1)
	if err != nil {
		t.Fatal(err)
	}
	defer lock(t, s)()
	held := []store.Held{{ID: c.Jobs[0].ID, Token: c.Token}}
	for name, call := range map[string]func() error{
		"claim":    func() error { _, err := s.Claim(t.Context(), want1); return err }, // nothing is due
		"verify":   func() error { _, err := s.Verify(t.Context(), held); return err },
		"expired":  func() error { _, err := s.Expired(t.Context(), 0, 10); return err },
		"orphans":  func() error { _, _, err := s.Orphans(t.Context(), 0, 10); return err },
		"retain":   func() error { _, err := s.Retain(t.Context(), store.FinishedJobs, time.Hour, 0, 10); return err },
		"stats":    func() error { _, err := s.Stats(t.Context()); return err },
		"list":     func() error { _, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 10}); return err },
		"daemons":  func() error { _, err := s.LiveDaemons(t.Context()); return err },
		"schema":   func() error { return s.CheckSchema(t.Context()) },
		"migrated": func() error { _, err := s.MigrateStatus(t.Context()); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.meter.Deadlocks.Load(); n != 0 {
		t.Errorf("the lock was met %d times", n)
	}
}

func TestWrite_CancelledWhileItWaitsWritesNothing(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	free := lock(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	done := make(chan error)
	go func() {
		_, err := s.Enqueue(ctx, []job.New{{Kind: "k"}})
		done <- err
	}()
	for s.meter.Deadlocks.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	free()
	if rows, err := s.ListJobs(t.Context(), store.JobFilter{Limit: 10}); err != nil || len(rows) != 0 {
		t.Errorf("jobs: %v, %v", rows, err)
	}
	put(t, s, job.New{Kind: "k"}) // and the connection is as good as before
}

// A heartbeat must not wait until every other connection is free again.
func TestRenew_NeedsNoPlaceInTheOtherPools(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	put(t, s, job.New{Kind: "k"})
	c, err := s.Claim(t.Context(), want1)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*pool{s.db, s.reads} {
		for range cap(p.slots) {
			c, err := p.get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer p.put(c, true)
		}
	}
	if lost, err := s.Renew(t.Context(), 1, time.Minute, []int64{c.Token}); err != nil || len(lost) != 0 {
		t.Errorf("renew: %v, %v", lost, err)
	}
	if lost, err := s.Verify(t.Context(), []store.Held{{ID: c.Jobs[0].ID, Token: c.Token}}); err != nil || len(lost) != 0 {
		t.Errorf("verify: %v, %v", lost, err)
	}
}

// Producers wait for SQLite's lock by looking for it ever more seldom, five seconds
// long by the defaults of common drivers. A store that works without a pause must
// leave it to them often enough.
func TestWrite_LeavesTheLockToOthers(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{OpTimeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	var g, producers errgroup.Group
	for range 2 {
		g.Go(func() error {
			jobs := slices.Repeat([]job.New{{Kind: "k", Queue: "busy"}}, 100)
			for ctx.Err() == nil {
				if _, err := s.Enqueue(context.WithoutCancel(ctx), jobs); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 2 {
		db := raw(t, "file:"+s.path+"?_pragma=busy_timeout(5000)")
		producers.Go(func() error {
			for range 25 {
				if _, err := db.ExecContext(ctx, "INSERT INTO jobs (kind) VALUES ('k')"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := producers.Wait(); err != nil {
		t.Errorf("producer: %v", err)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWAL_StaysSmallUnderWritesAndReads(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{OpTimeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	for range 2 {
		g.Go(func() error {
			for ctx.Err() == nil {
				if _, err := s.ListJobs(context.WithoutCancel(ctx), store.JobFilter{Limit: 100}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	payload := []byte(`"` + strings.Repeat("x", 250_000) + `"`)
	largest := int64(0)
	for range 80 { // 80 MB
		put(t, s, slices.Repeat([]job.New{{Kind: "k", Payload: payload}}, 4)...)
		info, err := os.Stat(s.path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if largest >= 64<<20 {
		t.Errorf("the WAL grew to %d bytes", largest)
	}
	t.Logf("largest WAL: %d bytes", largest)
}
