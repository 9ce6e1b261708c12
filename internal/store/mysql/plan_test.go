package mysql

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"queued/internal/store"
	"queued/job"
	"queued/test/servers"
)

// eachServer runs fn on a migrated store of its own on every server.
func eachServer(t *testing.T, fn func(t *testing.T, s *Store)) {
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			fn(t, openOn(t, servers.Database(t, servers.Shared(t, name)), nil))
		})
	}
}

func openOn(t *testing.T, dsn string, change func(*Options)) *Store {
	t.Helper()
	o := Options{DSN: dsn}
	if change != nil {
		change(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := s.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// fill inserts n jobs.
func fill(t *testing.T, s *Store, n int, change func(i int, j *job.New)) {
	t.Helper()
	for lo := 0; lo < n; lo += 1000 {
		var jobs []job.New
		for i := lo; i < min(lo+1000, n); i++ {
			j := job.New{Kind: "noop", Payload: json.RawMessage(`{"n": 1}`)}
			if change != nil {
				change(i, &j)
			}
			jobs = append(jobs, j)
		}
		if _, err := s.Enqueue(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
	}
}

// explain returns the plan's rows for the tables that are read.
func explain(t *testing.T, s *Store, text string, args ...any) (plan []string) {
	t.Helper()
	err := s.do(t.Context(), "explain", s.db, func(c *conn) error {
		return c.query(func(r row) error {
			var cols []string
			for i := range r {
				cols = append(cols, r.str(i))
			}
			plan = append(plan, strings.Join(cols, "|"))
			return nil
		}, "EXPLAIN "+text, args...)
	})
	if err != nil {
		t.Fatalf("explain %s: %v", text, err)
	}
	return plan
}

// rowsRead counts the index entries and rows that the server reads during fn.
func rowsRead(t *testing.T, s *Store, fn func(c *conn) error) (n int64) {
	t.Helper()
	err := s.do(t.Context(), "count reads", s.db, func(c *conn) error {
		if _, err := c.exec("FLUSH STATUS"); err != nil {
			return err
		}
		if err := fn(c); err != nil {
			return err
		}
		return c.query(func(r row) error {
			if !strings.HasPrefix(r.str(0), "Handler_read_rnd") { // of temporary tables
				n += r.int(1)
			}
			return nil
		}, "SHOW SESSION STATUS LIKE 'Handler_read%'")
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPlan_ClaimReadsThePollIndexInOrderAndLittleElse(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *Store) {
		// Due ones of three priorities, many that are due later, others' queues.
		fill(t, s, 12_000, func(i int, j *job.New) {
			j.Priority = []int{0, 0, 0, 5, 9}[i%5]
			if i%4 == 0 {
				j.Delay = time.Hour
			}
			if i%3 == 0 {
				j.Queue = "other"
			}
		})
		const limit = 100
		v, err := s.probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, full := range []bool{true, false} {
			for _, lock := range []bool{false, v.skipLocked} {
				sc := s.newScan([]store.Want{{Queue: "default", Limit: limit}}, v.skipLocked)
				sc.full[0] = full
				sc.levels[0] = 1 | 1<<5 | 1<<9
				text, args := sc.statements(s, lock)
				for _, row := range explain(t, s, strings.TrimPrefix(text, "START TRANSACTION; "), args...) {
					if strings.Contains(row, "filesort") {
						t.Errorf("full %t, lock %t: the claim sorts: %s", full, lock, row)
					}
					if strings.Contains(row, "|jobs|") && (!strings.Contains(row, "jobs_poll") || !strings.Contains(row, "Using index") && !lock) {
						t.Errorf("full %t, lock %t: an arm is not served by the poll index alone: %s", full, lock, row)
					}
				}
			}
		}
		sc := s.newScan([]store.Want{{Queue: "default", Limit: limit}}, v.skipLocked)
		n := rowsRead(t, s, func(c *conn) error { return sc.run(c, s, false) })
		if len(sc.found) != limit || n > 8*limit {
			t.Errorf("got %d candidates after reading %d rows, want %d after at most %d", len(sc.found), n, limit, 8*limit)
		}
	})
}

func TestPlan_EveryWriteGoesByPrimaryKey(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *Store) {
		fill(t, s, 5_000, nil)
		ctx := context.Background()
		got, err := s.Claim(ctx, store.ClaimRequest{Owner: 1, Lease: time.Minute, Wants: []store.Want{{Queue: "default", Limit: 100}}})
		if err != nil || len(got.Jobs) != 100 {
			t.Fatalf("claim: got %d jobs, %v", len(got.Jobs), err)
		}
		ids := make([]int64, len(got.Jobs))
		for i, j := range got.Jobs {
			ids[i] = j.ID
		}
		list := idList(ids)
		for name, text := range map[string]string{
			"claim":  fmt.Sprintf("SELECT %s, payload FROM jobs WHERE id IN (%s) AND token = %d AND status = 'running'", jobColumns, list, got.Token),
			"take":   fmt.Sprintf("SELECT 1 FROM jobs WHERE id IN (%s) AND status = 'ready' AND available_at <= NOW(3)", list),
			"finish": fmt.Sprintf("SELECT 1 FROM jobs WHERE id IN (%s) AND token = %d AND status = 'running'", list, got.Token),
			"apply":  fmt.Sprintf("SELECT id, token FROM jobs WHERE id IN (%s) AND status = 'running' ORDER BY id FOR UPDATE", list),
			"retain": "SELECT id, status FROM jobs WHERE id > 100 ORDER BY id LIMIT 100",
		} {
			for _, row := range explain(t, s, text) {
				if !strings.Contains(row, "PRIMARY") || strings.Contains(row, "filesort") {
					t.Errorf("%s: got plan %s, want a range of the primary key", name, row)
				}
			}
		}
		reap := fmt.Sprintf("SELECT token, owner, job_ids FROM leases FORCE INDEX (leases_expires) WHERE expires_at <= NOW(3) - INTERVAL %d MICROSECOND ORDER BY expires_at LIMIT %d", 1000, 10)
		for _, row := range explain(t, s, reap) {
			if !strings.Contains(row, "leases_expires") || strings.Contains(row, "filesort") {
				t.Errorf("reap: got plan %s, want the index on expires_at", row)
			}
		}
		writes := make([]job.Write, len(got.Jobs))
		for i, j := range got.Jobs {
			writes[i], _ = job.Decide(j, "", nil, nil, job.Policy{}, nil)
		}
		n := rowsRead(t, s, func(c *conn) error {
			_, err := s.finishDone(c, store.Finish{Writes: writes, Settled: []int64{got.Token}, Owner: 1}, nothing)
			return err
		})
		if n > 250 {
			t.Errorf("finishing 100 jobs read %d rows, want at most 250", n)
		}
	})
}
