package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"queued/internal/store"
	"queued/job"
)

// Stats counts per queue; see store.Inspector. Done and running rows share one
// range of the poll index, so neither is counted there: running jobs are
// found through the leases, ended ones through the counters.
func (s *Store) Stats(ctx context.Context) (stats []store.QueueStats, err error) {
	err = s.do(ctx, "count jobs", s.db, func(c *conn) error {
		byQueue := map[string]*store.QueueStats{}
		get := func(queue string) *store.QueueStats {
			q := byQueue[queue]
			if q == nil {
				q = &store.QueueStats{Queue: queue}
				byQueue[queue] = q
			}
			return q
		}
		if err := c.query(func(r row) error { get(r.str(0)); return nil },
			fmt.Sprintf("SELECT DISTINCT queue FROM %s FORCE INDEX (jobs_poll); SELECT DISTINCT queue FROM %s FORCE INDEX (dead_jobs_queue)",
				s.t.jobs, s.t.dead)); err != nil {
			return err
		}
		for _, q := range byQueue {
			if err := s.countQueue(c, q); err != nil {
				return err
			}
		}
		if err := s.eachRunning(c, "queue, COUNT(*)", " GROUP BY queue", func(r row) error {
			get(r.str(0)).Running += r.int(1)
			return nil
		}); err != nil {
			return err
		}
		if err := c.query(func(r row) error {
			q := get(r.str(0))
			q.Done, q.Failed, q.Buried = r.int(1), r.int(2), r.int(3)
			return nil
		}, fmt.Sprintf("SELECT queue, SUM(done), SUM(failed), SUM(dead) FROM %s WHERE minute_at > NOW() - INTERVAL 1 HOUR GROUP BY queue", s.t.counters)); err != nil {
			return err
		}
		stats = stats[:0]
		for _, q := range byQueue {
			stats = append(stats, *q)
		}
		slices.SortFunc(stats, func(a, b store.QueueStats) int { return strings.Compare(a.Queue, b.Queue) })
		return nil
	})
	return stats, err
}

func (s *Store) countQueue(c *conn, q *store.QueueStats) error {
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT COALESCE(SUM(available_at <= NOW(3)), 0), COUNT(*) FROM (SELECT available_at FROM %s FORCE INDEX (jobs_poll) WHERE queue = ? AND pending = 1 LIMIT %d) AS part", s.t.jobs, store.StatsLimit)
	args := []any{q.Queue}
	if err := c.query(func(r row) error {
		q.Due = r.int(0)
		q.Scheduled = r.int(1) - r.int(0)
		return nil
	}, b.String(), args...); err != nil {
		return err
	}
	b.Reset()
	args = args[:0]
	for p := job.MinPriority; p <= job.MaxPriority; p++ {
		if p > job.MinPriority {
			b.WriteString(" UNION ALL ")
		}
		fmt.Fprintf(&b, "(SELECT TIMESTAMPDIFF(MICROSECOND, available_at, NOW(3)) FROM %s FORCE INDEX (jobs_poll) WHERE queue = ? AND pending = 1 AND priority = %d ORDER BY available_at LIMIT 1)", s.t.jobs, p)
		args = append(args, q.Queue)
	}
	if err := c.query(func(r row) error {
		q.OldestDue = max(q.OldestDue, time.Duration(r.int(0))*time.Microsecond)
		return nil
	}, b.String(), args...); err != nil {
		return err
	}
	return c.query(func(r row) error { q.Dead = r.int(0); return nil },
		fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM %s FORCE INDEX (dead_jobs_queue) WHERE queue = ? AND replayed_at IS NULL LIMIT %d) AS part", s.t.dead, store.StatsLimit), q.Queue)
}

// eachRunning selects from the jobs that leases cover and that are running.
func (s *Store) eachRunning(c *conn, columns, tail string, each func(r row) error) error {
	var lists []string
	if err := c.query(func(r row) error {
		if ids, err := store.DecodeIDs(r.str(0)); err == nil && len(ids) > 0 {
			lists = append(lists, idList(ids))
		}
		return nil
	}, "SELECT job_ids FROM "+s.t.leases); err != nil {
		return err
	}
	for chunk := range slices.Chunk(lists, 20) {
		if err := c.query(each, fmt.Sprintf("SELECT %s FROM %s WHERE id IN (%s) AND status = 'running'%s", columns, s.t.jobs, strings.Join(chunk, ","), tail)); err != nil {
			return err
		}
	}
	return nil
}

// ListJobs lists jobs; see store.Inspector.
func (s *Store) ListJobs(ctx context.Context, f store.JobFilter) (list []store.JobRow, err error) {
	err = s.do(ctx, "list jobs", s.db, func(c *conn) error {
		list = list[:0]
		var w where
		w.before(f.Before)
		w.equal("queue", f.Queue)
		w.equal("kind", f.Kind)
		w.equal("idempotency_key", f.Key)
		each := func(r row) error { list = append(list, scanJobRow(r)); return nil }
		if f.State != job.Running {
			w.equal("status", string(f.State))
			return c.query(each, fmt.Sprintf("SELECT %s FROM %s%s ORDER BY id DESC LIMIT %d", jobRowColumns, s.t.jobs, w.text("WHERE"), f.Limit), w.args...)
		}
		// Few among many: through the leases.
		var ids []int64
		if err := s.eachRunning(c, "id", "", func(r row) error { ids = append(ids, r.int(0)); return nil }); err != nil || len(ids) == 0 {
			return err
		}
		return c.query(each, fmt.Sprintf("SELECT %s FROM %s WHERE id IN (%s) AND status = 'running'%s ORDER BY id DESC LIMIT %d",
			jobRowColumns, s.t.jobs, idList(ids), w.text("AND"), f.Limit), w.args...)
	})
	return list, err
}

// where collects conditions.
type where struct {
	conds []string
	args  []any
}

func (w *where) equal(column, value string) {
	if value != "" {
		w.conds = append(w.conds, column+" = ?")
		w.args = append(w.args, value)
	}
}

func (w *where) before(id int64) {
	if id > 0 {
		w.conds = append(w.conds, fmt.Sprintf("id < %d", id))
	}
}

func (w *where) text(first string) string {
	if len(w.conds) == 0 {
		return ""
	}
	return " " + first + " " + strings.Join(w.conds, " AND ")
}

// GetJob reads one job; see store.Inspector.
func (s *Store) GetJob(ctx context.Context, id int64) (out store.JobRow, err error) {
	err = s.do(ctx, fmt.Sprintf("read job %d", id), s.db, func(c *conn) error {
		found := false
		if err := c.query(func(r row) error {
			found, out = true, scanJobRow(r)
			out.Result, out.Payload = r.str(15), payloadJSON(r.bytes(16))
			return nil
		}, fmt.Sprintf("SELECT %s, result, payload FROM %s WHERE id = %d", jobRowColumns, s.t.jobs, id)); err != nil {
			return err
		}
		if !found {
			return store.ErrNotFound
		}
		return nil
	})
	return out, err
}

// ListDead lists dead letters; see store.Inspector.
func (s *Store) ListDead(ctx context.Context, f store.DeadFilter) (list []store.DeadRow, err error) {
	err = s.do(ctx, "list dead letters", s.db, func(c *conn) error {
		list = list[:0]
		var w where
		w.before(f.Before)
		w.equal("queue", f.Queue)
		w.equal("kind", f.Kind)
		w.equal("reason", f.Reason)
		w.equal("job_key", f.Key)
		if f.Replayed != nil {
			not := ""
			if *f.Replayed {
				not = "NOT "
			}
			w.conds = append(w.conds, "replayed_at IS "+not+"NULL")
		}
		return c.query(func(r row) error { list = append(list, scanDeadRow(r)); return nil },
			fmt.Sprintf("SELECT %s FROM %s%s ORDER BY id DESC LIMIT %d", deadRowColumns, s.t.dead, w.text("WHERE"), f.Limit), w.args...)
	})
	return list, err
}

// GetDead reads one dead letter; see store.Inspector.
func (s *Store) GetDead(ctx context.Context, id int64) (out store.DeadRow, err error) {
	err = s.do(ctx, fmt.Sprintf("read dead letter %d", id), s.db, func(c *conn) error {
		found := false
		if err := c.query(func(r row) error {
			found, out = true, scanDeadRow(r)
			out.Payload = payloadJSON(r.bytes(18))
			return nil
		}, fmt.Sprintf("SELECT %s, payload FROM %s WHERE id = %d", deadRowColumns, s.t.dead, id)); err != nil {
			return err
		}
		if !found {
			return store.ErrNotFound
		}
		return nil
	})
	return out, err
}

// Errors lists a job's failed attempts; see store.Inspector.
func (s *Store) Errors(ctx context.Context, jobKey string) (list []store.ErrorRow, err error) {
	err = s.do(ctx, fmt.Sprintf("list errors of %q", jobKey), s.db, func(c *conn) error {
		list = list[:0]
		return c.query(func(r row) error {
			list = append(list, store.ErrorRow{JobID: r.int(0), Attempt: int(r.int(1)), Error: r.str(2), FailedAt: r.time(3)})
			return nil
		}, "SELECT job_id, attempt, error, failed_at FROM "+s.t.errors+" WHERE job_key = ? ORDER BY id", jobKey)
	})
	return list, err
}
