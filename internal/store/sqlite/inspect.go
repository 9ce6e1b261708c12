package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"queued/internal/store"
	"queued/job"
)

// Stats counts per queue; see store.Inspector. Running jobs are found through
// the leases, ended ones through the counters.
func (s *Store) Stats(ctx context.Context) (stats []store.QueueStats, err error) {
	err = s.read(ctx, "count jobs", s.reads, func(t *tx) error {
		byQueue := map[string]*store.QueueStats{}
		get := func(queue string) *store.QueueStats {
			q := byQueue[queue]
			if q == nil {
				q = &store.QueueStats{Queue: queue}
				byQueue[queue] = q
			}
			return q
		}
		if err := eachQueue(t, "jobs INDEXED BY jobs_poll WHERE status = 'ready'", func(queue string) error { return countReady(t, get(queue)) }); err != nil {
			return err
		}
		if err := eachQueue(t, "dead_jobs INDEXED BY dead_jobs_queue WHERE TRUE", func(queue string) error {
			return t.row("SELECT count(*) FROM (SELECT 1 FROM dead_jobs INDEXED BY dead_jobs_queue WHERE queue = ? AND replayed_at IS NULL LIMIT ?)",
				[]any{queue, store.StatsLimit}, &get(queue).Dead)
		}); err != nil {
			return err
		}
		running, err := runningIDs(t)
		if err != nil {
			return err
		}
		if err := t.query("SELECT queue, count(*) FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND status = 'running' GROUP BY queue",
			[]any{running}, func(rows *sql.Rows) error {
				var queue string
				var n int64
				err := rows.Scan(&queue, &n)
				get(queue).Running = min(n, store.StatsLimit)
				return err
			}); err != nil {
			return err
		}
		if err := t.query("SELECT queue, sum(done), sum(failed), sum(dead) FROM counters WHERE minute_at > ? GROUP BY queue",
			[]any{t.now - time.Hour.Milliseconds()}, func(rows *sql.Rows) error {
				var n store.QueueStats
				err := rows.Scan(&n.Queue, &n.Done, &n.Failed, &n.Buried)
				q := get(n.Queue)
				q.Done, q.Failed, q.Buried = n.Done, n.Failed, n.Buried
				return err
			}); err != nil {
			return err
		}
		stats = make([]store.QueueStats, 0, len(byQueue))
		for _, q := range byQueue {
			stats = append(stats, *q)
		}
		slices.SortFunc(stats, func(a, b store.QueueStats) int { return strings.Compare(a.Queue, b.Queue) })
		return nil
	})
	return stats, err
}

// eachQueue calls fn for each queue in an index that begins with it, jumping
// from one queue to the next.
func eachQueue(t *tx, from string, fn func(queue string) error) error {
	var queue sql.NullString
	next := "SELECT min(queue) FROM " + from
	for {
		if err := t.row(next+" AND (?1 IS NULL OR queue > ?1)", []any{queue}, &queue); err != nil || !queue.Valid {
			return err
		}
		if err := fn(queue.String); err != nil {
			return err
		}
	}
}

func countReady(t *tx, q *store.QueueStats) error {
	for _, arm := range arms {
		for _, c := range []struct {
			count *int64
			when  string
		}{{&q.Due, " AND available_at <= ?2"}, {&q.Scheduled, " AND available_at > ?2"}} {
			var n int64
			if err := t.row("SELECT count(*) FROM (SELECT 1 "+readyOf+arm+c.when+" LIMIT ?3)",
				[]any{q.Queue, t.now, store.StatsLimit - *c.count}, &n); err != nil {
				return err
			}
			*c.count += n
		}
		var oldest sql.NullInt64
		if err := t.row("SELECT min(available_at) "+readyOf+arm+" AND available_at <= ?2", []any{q.Queue, t.now}, &oldest); err != nil {
			return err
		}
		if oldest.Valid {
			q.OldestDue = max(q.OldestDue, time.Duration(t.now-oldest.Int64)*time.Millisecond)
		}
	}
	return nil
}

// runningIDs are the ids that leases cover, as a parameter for json_each.
func runningIDs(t *tx) (string, error) {
	var ids []int64
	err := t.query("SELECT job_ids FROM leases", nil, func(rows *sql.Rows) error {
		var set string
		if err := rows.Scan(&set); err != nil {
			return err
		}
		if list, err := store.DecodeIDs(set); err == nil { // else edited by hand
			ids = append(ids, list...)
		}
		return nil
	})
	return jsonIDs(ids), err
}

// ListJobs lists jobs; see store.Inspector.
func (s *Store) ListJobs(ctx context.Context, f store.JobFilter) (list []store.JobRow, err error) {
	err = s.read(ctx, "list jobs", s.reads, func(t *tx) error {
		list = nil
		var w where
		w.add("id < ?", f.Before, f.Before > 0)
		w.add("status = ?", f.State, f.State != "")
		w.add("queue = ?", f.Queue, f.Queue != "")
		w.add("kind = ?", f.Kind, f.Kind != "")
		w.add("idempotency_key = ?", f.Key, f.Key != "")
		if f.State == job.Running {
			// Few among many: through the leases.
			ids, err := runningIDs(t)
			if err != nil {
				return err
			}
			w.add("id IN (SELECT value FROM json_each(?))", ids, true)
		}
		return t.query("SELECT "+jobRowColumns+" FROM jobs"+w.String()+" ORDER BY id DESC LIMIT ?", append(w.args, f.Limit), func(rows *sql.Rows) error {
			r, err := scanJobRow(rows)
			list = append(list, r)
			return err
		})
	})
	return list, err
}

// where collects conditions.
type where struct {
	conds []string
	args  []any
}

func (w *where) add(cond string, arg any, wanted bool) {
	if wanted {
		w.conds = append(w.conds, cond)
		w.args = append(w.args, arg)
	}
}

func (w *where) String() string {
	if len(w.conds) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conds, " AND ")
}

// GetJob reads one job; see store.Inspector.
func (s *Store) GetJob(ctx context.Context, id int64) (out store.JobRow, err error) {
	err = s.read(ctx, fmt.Sprintf("read job %d", id), s.reads, func(t *tx) error {
		found := false
		err := t.query("SELECT "+jobRowColumns+", result, payload FROM jobs WHERE id = ?", []any{id}, func(rows *sql.Rows) error {
			var result sql.NullString
			var payload []byte
			var err error
			out, err = scanJobRow(rows, &result, &payload)
			out.Result, out.Payload, found = result.String, payloadJSON(payload), true
			return err
		})
		if err == nil && !found {
			return store.ErrNotFound
		}
		return err
	})
	return out, err
}

// ListDead lists dead letters; see store.Inspector.
func (s *Store) ListDead(ctx context.Context, f store.DeadFilter) (list []store.DeadRow, err error) {
	err = s.read(ctx, "list dead letters", s.reads, func(t *tx) error {
		list = nil
		var w where
		w.add("id < ?", f.Before, f.Before > 0)
		w.add("queue = ?", f.Queue, f.Queue != "")
		w.add("kind = ?", f.Kind, f.Kind != "")
		w.add("reason = ?", f.Reason, f.Reason != "")
		w.add("job_key = ?", f.Key, f.Key != "")
		if f.Replayed != nil {
			w.add("(replayed_at IS NOT NULL) = ?", *f.Replayed, true)
		}
		return t.query("SELECT "+deadRowColumns+" FROM dead_jobs"+w.String()+" ORDER BY id DESC LIMIT ?", append(w.args, f.Limit), func(rows *sql.Rows) error {
			r, err := scanDeadRow(rows)
			list = append(list, r)
			return err
		})
	})
	return list, err
}

// GetDead reads one dead letter; see store.Inspector.
func (s *Store) GetDead(ctx context.Context, id int64) (out store.DeadRow, err error) {
	err = s.read(ctx, fmt.Sprintf("read dead letter %d", id), s.reads, func(t *tx) error {
		found := false
		err := t.query("SELECT "+deadRowColumns+", payload FROM dead_jobs WHERE id = ?", []any{id}, func(rows *sql.Rows) error {
			var payload []byte
			var err error
			out, err = scanDeadRow(rows, &payload)
			out.Payload, found = payloadJSON(payload), true
			return err
		})
		if err == nil && !found {
			return store.ErrNotFound
		}
		return err
	})
	return out, err
}

// Errors lists a job's failed attempts; see store.Inspector.
func (s *Store) Errors(ctx context.Context, jobKey string) (list []store.ErrorRow, err error) {
	err = s.read(ctx, fmt.Sprintf("list errors of %q", jobKey), s.reads, func(t *tx) error {
		list = nil
		return t.query("SELECT job_id, attempt, error, failed_at FROM job_errors WHERE job_key = ? ORDER BY id", []any{jobKey}, func(rows *sql.Rows) error {
			var r store.ErrorRow
			var failed int64
			err := rows.Scan(&r.JobID, &r.Attempt, &r.Error, &failed)
			r.FailedAt = atMillis(failed)
			list = append(list, r)
			return err
		})
	})
	return list, err
}
