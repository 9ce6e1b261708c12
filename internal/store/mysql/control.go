package mysql

import (
	"context"
	"fmt"

	"queued/internal/store"
)

// RetryJob makes a job due now; see store.Controller. One that was cancelled while it
// ran loses the token, so that what its worker writes does not look like the
// repeat of something recorded.
func (s *Store) RetryJob(ctx context.Context, id int64) error {
	v, err := s.probe(ctx)
	if err != nil {
		return fmt.Errorf("retry job %d: %w", id, err)
	}
	return s.changeJob(ctx, "retry", id,
		"attempts = CASE status WHEN 'cancelled' THEN 0 ELSE attempts END, token = CASE status WHEN 'cancelled' THEN 0 ELSE token END, available_at = CASE status WHEN 'cancelled' THEN NOW(3) ELSE LEAST(available_at, NOW(3)) END, finished_at = '1970-01-02 00:00:00', status = 'ready'"+v.pendingSet(true),
		"status IN ('ready', 'cancelled')")
}

// CancelJob ends a job; see store.Controller.
func (s *Store) CancelJob(ctx context.Context, id int64) error {
	v, err := s.probe(ctx)
	if err != nil {
		return fmt.Errorf("cancel job %d: %w", id, err)
	}
	return s.changeJob(ctx, "cancel", id, "status = 'cancelled', finished_at = NOW(3)"+v.pendingSet(false), "status IN ('ready', 'running')")
}

func (s *Store) changeJob(ctx context.Context, verb string, id int64, set, guard string) error {
	return s.do(ctx, fmt.Sprintf("%s job %d", verb, id), s.db, func(c *conn) error {
		n, err := c.exec1(fmt.Sprintf("UPDATE %s SET %s WHERE id = %d AND %s", s.t.jobs, set, id, guard))
		if err != nil || n > 0 {
			return err
		}
		status := ""
		changeable := int64(0)
		if err := c.query(func(r row) error { status, changeable = r.str(0), r.int(1); return nil },
			fmt.Sprintf("SELECT status, %s FROM %s WHERE id = %d", guard, s.t.jobs, id)); err != nil {
			return err
		}
		switch {
		case status == "":
			return store.ErrNotFound
		case changeable != 0:
			return nil // it was as wanted already
		}
		return fmt.Errorf("%w: the job is %s", store.ErrState, status)
	})
}

// ReplayDead puts a dead letter back; see store.Controller. A job without a key
// gets its old JobKey for one, so that marks of effects already done still apply.
func (s *Store) ReplayDead(ctx context.Context, id int64) (jobID int64, err error) {
	err = s.do(ctx, fmt.Sprintf("replay dead letter %d", id), s.db, func(c *conn) error {
		c.inTx = true
		found, replayed := false, int64(0)
		if err := c.query(func(r row) error { found, replayed = true, r.int(0); return nil },
			fmt.Sprintf("START TRANSACTION; SELECT COALESCE(replayed_job_id, 0) FROM %s WHERE id = %d FOR UPDATE", s.t.dead, id)); err != nil {
			return err
		}
		switch {
		case !found:
			return store.ErrNotFound
		case replayed != 0:
			return fmt.Errorf("%w: it was replayed as job %d", store.ErrState, replayed)
		}
		if err := c.query(func(r row) error { jobID = r.int(0); return nil }, fmt.Sprintf(
			"INSERT INTO %s (queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms, replays)"+
				" SELECT queue, kind, job_key, payload, priority, max_attempts, timeout_ms, replays + 1 FROM %s WHERE id = %d; SELECT LAST_INSERT_ID()",
			s.t.jobs, s.t.dead, id)); err != nil {
			return err
		}
		if _, err := c.exec(fmt.Sprintf("UPDATE %s SET replayed_at = NOW(3), replayed_job_id = %d WHERE id = %d; COMMIT", s.t.dead, jobID, id)); err != nil {
			return err
		}
		c.inTx = false
		return nil
	})
	return jobID, err
}

// DiscardDead deletes a dead letter; see store.Controller.
func (s *Store) DiscardDead(ctx context.Context, id int64) error {
	return s.do(ctx, fmt.Sprintf("discard dead letter %d", id), s.db, func(c *conn) error {
		n, err := c.exec1(fmt.Sprintf("DELETE FROM %s WHERE id = %d", s.t.dead, id))
		if err == nil && n == 0 {
			return store.ErrNotFound
		}
		return err
	})
}
