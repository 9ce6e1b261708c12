package sqlite

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"queued/internal/store"
	"queued/job"
)

// plan is what SQLite says it will do, a step per line.
func plan(t *testing.T, s *Store, query string) string {
	t.Helper()
	c, err := s.reads.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.reads.put(c, true)
	args := make([]any, max(strings.Count(query, "?"), 9))
	rows, err := c.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(steps, "\n")
}

func TestPlans_SearchByIndexAndSortNothing(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	put(t, s, job.New{Kind: "k"})
	check := func(query string, want ...string) {
		t.Helper()
		got := plan(t, s, query)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("plan of %s:\n%s\nwant %s", query, got, w)
			}
		}
		for _, bad := range []string{"TEMP B-TREE FOR ORDER", "TEMP B-TREE FOR RIGHT", "TEMP B-TREE FOR DISTINCT", "SCAN jobs", "SCAN dead_jobs", "SCAN job_errors", "AUTOMATIC"} {
			if strings.Contains(got, bad) {
				t.Errorf("plan of %s:\n%s\nwant no %s", query, got, bad)
			}
		}
	}
	check(anyDueSQL, "COVERING INDEX jobs_poll (queue=? AND priority=? AND available_at<?)")
	for i, arm := range arms {
		want := "INDEX jobs_poll (queue=? AND priority=? AND available_at<?)"
		if i == 0 || i == len(arms)-1 {
			want = "INDEX jobs_poll (queue=? AND priority"
		}
		check(dueSQL(arm), "SEARCH jobs USING "+want)
	}
	check(takeSQL, "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)")
	for _, q := range []string{plainSQL, doneSQL, readySQL, burySQL, buriedSQL, unburySQL} {
		check(q, "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)")
	}
	check(traceSQL, "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)", "SEARCH dead_jobs USING INDEX dead_jobs_job (job_id=?)")

	// Statements that are run again and again beside those, as they were prepared.
	calls := []func() error{
		func() error { _, err := s.Expired(t.Context(), 0, 10); return err },
		func() error { _, _, err := s.Orphans(t.Context(), 0, 10); return err },
		func() error { _, err := s.Retain(t.Context(), store.FinishedJobs, time.Hour, 0, 10); return err },
		func() error { _, err := s.Retain(t.Context(), store.DeadJobs, time.Hour, 0, 10); return err },
		func() error { _, err := s.Retain(t.Context(), store.JobErrors, time.Hour, 0, 10); return err },
		func() error { _, err := s.Stats(t.Context()); return err },
		func() error { _, err := s.Errors(t.Context(), "k"); return err },
		func() error { _, err := s.ListJobs(t.Context(), store.JobFilter{Key: "k", Limit: 10}); return err },
		func() error {
			_, err := s.ListJobs(t.Context(), store.JobFilter{State: job.Running, Before: 9, Limit: 10})
			return err
		},
		func() error { _, err := s.ListDead(t.Context(), store.DeadFilter{Key: "k", Limit: 10}); return err },
		func() error { _, err := s.ListDead(t.Context(), store.DeadFilter{Kind: "k", Limit: 10}); return err },
		func() error { _, err := s.Verify(t.Context(), []store.Held{{ID: 1}}); return err },
	}
	for _, call := range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []*pool{s.reads, s.lease} {
		for _, c := range p.idle {
			for q := range c.stmts {
				if strings.HasPrefix(q, "SELECT") {
					check(q)
				}
			}
		}
	}
}
