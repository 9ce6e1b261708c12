package mysql

import (
	"testing"
	"time"

	"queued/internal/store"
	"queued/job"
	"queued/migrations"
	"queued/test/servers"
)

// A server that was upgraded in place keeps the tables of the old one, whose
// pending column did not follow status by itself.
func TestUpgradedServer_KeepsPendingInStep(t *testing.T) {
	t.Parallel()
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			s, err := Open(Options{DSN: servers.Database(t, servers.Shared(t, name))})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			steps, err := migrations.Load("mysql", migrations.Vars{
				JSON: "LONGTEXT CHARACTER SET utf8mb4", Collate: "utf8mb4_bin", Pending: "NULL DEFAULT 1",
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range append(steps[0].Up, s.createMigrations(), s.recordStep(steps[0])) {
				if _, err := s.db.ExecContext(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.CheckSchema(t.Context()); err != nil {
				t.Fatal(err)
			}
			fill(t, s, 3, nil)
			if _, err := s.db.ExecContext(t.Context(), "INSERT INTO jobs (kind, queue) VALUES ('noop', 'default ')"); err != nil {
				t.Fatal(err)
			}
			got := mustClaim(t, s, 4)
			for _, j := range got.Jobs {
				equal(t, "queue as it was asked for", j.Queue, "default")
			}
			equal(t, "rows that look ready while they run", count(t, s, "SELECT COUNT(*) FROM jobs WHERE pending = 1"), 0)
			if _, err := s.Finish(t.Context(), finishAll(got, func(i int, j *job.Job) job.Write {
				if i == 0 {
					return job.Release(j)
				}
				return allDoneOutcome(i, j)
			})); err != nil {
				t.Fatal(err)
			}
			equal(t, "rows that look ready", count(t, s, "SELECT COUNT(*) FROM jobs WHERE pending = 1"), 1)
			// It kept its due time, behind the mark: the next full scan finds it.
			for deadline := time.Now().Add(fullAtMost + 10*time.Second); ; {
				got, err := claim(t, s, 1)
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Jobs) == 1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the job that was handed back is not found")
				}
			}
		})
	}
}

// A queue that is asked seldom is scanned without marks all the same, beside one
// that is asked all the time.
func TestClaim_LateRowOfASeldomAskedQueueIsFound(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *Store) {
		ask := func(queue string) store.Claimed {
			got, err := s.Claim(t.Context(), store.ClaimRequest{Owner: 7, Lease: time.Minute, Wants: []store.Want{{Queue: queue, Limit: 10}}})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		fill(t, s, 1, nil)
		if got := ask("default"); len(got.Jobs) != 1 {
			t.Fatalf("got %d jobs, want 1", len(got.Jobs))
		}
		fill(t, s, 1, func(_ int, j *job.New) { j.At = time.Now().Add(-time.Hour) })
		deadline := time.Now().Add(fullAtMost + 10*time.Second)
		for i := 0; ; i++ {
			ask("busy")
			if i%20 == 0 && len(ask("default").Jobs) == 1 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the late row was not found in time")
			}
		}
	})
}
