package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"queued/internal/store"
	"queued/job"
)

// RetryJob makes a job due now; see store.Controller. One that was cancelled while it
// ran loses the token, so that what its worker writes does not look like the
// repeat of something recorded.
func (s *Store) RetryJob(ctx context.Context, id int64) error {
	return s.changeJob(ctx, "retry", id, `status = 'ready', finished_at = NULL,
attempts = CASE status WHEN 'cancelled' THEN 0 ELSE attempts END,
token = CASE status WHEN 'cancelled' THEN 0 ELSE token END,
available_at = CASE status WHEN 'cancelled' THEN ?2 ELSE min(available_at, ?2) END`, job.Ready, job.Cancelled)
}

// CancelJob ends a job; see store.Controller. The token stays: the status guards
// the row against its worker.
func (s *Store) CancelJob(ctx context.Context, id int64) error {
	return s.changeJob(ctx, "cancel", id, "status = 'cancelled', finished_at = ?2", job.Ready, job.Running)
}

func (s *Store) changeJob(ctx context.Context, verb string, id int64, set string, from, orFrom job.State) error {
	return s.write(ctx, fmt.Sprintf("%s job %d", verb, id), s.db, func(t *tx) error {
		n, err := t.exec("UPDATE jobs SET "+set+" WHERE id = ?1 AND status IN (?3, ?4)", id, t.now, from, orFrom)
		if err != nil || n > 0 {
			return err
		}
		var state job.State
		if err := t.row("SELECT status FROM jobs WHERE id = ?", []any{id}, &state); err != nil {
			return err
		}
		return fmt.Errorf("%w: the job is %s", store.ErrState, state)
	})
}

// ReplayDead puts a dead letter back; see store.Controller. A job without a key
// gets its old JobKey for one, so that marks of effects already done still apply.
func (s *Store) ReplayDead(ctx context.Context, id int64) (jobID int64, err error) {
	err = s.write(ctx, fmt.Sprintf("replay dead letter %d", id), s.db, func(t *tx) error {
		var replayed sql.NullInt64
		if err := t.row("SELECT replayed_job_id FROM dead_jobs WHERE id = ?", []any{id}, &replayed); err != nil {
			return err
		}
		if replayed.Valid {
			return fmt.Errorf("%w: it was replayed as job %d", store.ErrState, replayed.Int64)
		}
		if err := t.row(`INSERT INTO jobs (queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms, available_at, created_at, replays)
SELECT queue, kind, job_key, payload, priority, max_attempts, timeout_ms, ?2, ?2, replays + 1 FROM dead_jobs WHERE id = ?1 RETURNING id`,
			[]any{id, t.now}, &jobID); err != nil {
			return err
		}
		_, err := t.exec("UPDATE dead_jobs SET replayed_at = ?2, replayed_job_id = ?3 WHERE id = ?1", id, t.now, jobID)
		return err
	})
	if err != nil {
		return 0, err
	}
	return jobID, nil
}

// DiscardDead deletes a dead letter; see store.Controller.
func (s *Store) DiscardDead(ctx context.Context, id int64) error {
	return s.write(ctx, fmt.Sprintf("discard dead letter %d", id), s.db, func(t *tx) error {
		n, err := t.exec("DELETE FROM dead_jobs WHERE id = ?", id)
		if err == nil && n == 0 {
			return store.ErrNotFound
		}
		return err
	})
}
