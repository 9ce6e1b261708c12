package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"queued/internal/store"
)

var _ store.Bencher = (*Store)(nil)

// NaiveStep claims and finishes one job; see store.Bencher.
func (s *Store) NaiveStep(ctx context.Context, queue string) (found bool, err error) {
	var id int64
	err = s.write(ctx, "claim one", s.db, func(t *tx) error {
		id = 0
		var kind, payload sql.NullString
		err := t.row(`UPDATE jobs SET status = 'running', attempts = attempts + 1, claimed_at = ?2 WHERE id =
(SELECT id FROM jobs INDEXED BY jobs_poll WHERE queue = ?1 AND status = 'ready' AND priority = 0 AND available_at <= ?2 ORDER BY available_at, id LIMIT 1)
RETURNING id, kind, payload`, []any{queue, t.now}, &id, &kind, &payload)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil || id == 0 {
		return false, err
	}
	return true, s.write(ctx, "finish one", s.db, func(t *tx) error {
		_, err := t.exec("UPDATE jobs SET status = 'done', finished_at = ? WHERE id = ?", t.now, id)
		return err
	})
}

// JobIDs lists ids; see store.Bencher.
func (s *Store) JobIDs(ctx context.Context, queue string) (ids []int64, err error) {
	err = s.read(ctx, "list ids", s.reads, func(t *tx) error {
		ids = ids[:0]
		return t.query("SELECT id FROM jobs WHERE queue = ? ORDER BY id", []any{queue}, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		})
	})
	return ids, err
}

// Touch updates rows; see store.Bencher.
func (s *Store) Touch(ctx context.Context, ids []int64) error {
	return s.write(ctx, "touch rows", s.db, func(t *tx) error {
		_, err := t.exec("UPDATE jobs SET replays = replays + 1 WHERE id IN (SELECT value FROM json_each(?))", jsonIDs(ids))
		return err
	})
}

// FillDone inserts finished rows; see store.Bencher.
func (s *Store) FillDone(ctx context.Context, queue string, n int) error {
	for n > 0 {
		batch := min(n, 20_000)
		if err := s.write(ctx, "fill with done rows", s.db, func(t *tx) error {
			_, err := t.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?3)
INSERT INTO jobs (queue, kind, payload, available_at, created_at, status, attempts, token, claimed_at, finished_at)
SELECT ?1, 'queued-bench', '{}', ?2, ?2, 'done', 1, 1, ?2, ?2 FROM n`, queue, t.now, batch)
			return err
		}); err != nil {
			return err
		}
		n -= batch
	}
	return nil
}

// HoldSnapshot opens a snapshot; see store.Bencher.
func (s *Store) HoldSnapshot(ctx context.Context) (release func() error, err error) {
	stx, err := s.reads.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, wrap(ctx, "hold a snapshot", err)
	}
	var n int // SQLite takes the snapshot at the first read
	if err := stx.QueryRowContext(ctx, "SELECT COUNT(*) FROM leases").Scan(&n); err != nil {
		return nil, errors.Join(wrap(ctx, "hold a snapshot", err), stx.Rollback())
	}
	return stx.Rollback, nil
}

// Wipe deletes a queue's rows; see store.Bencher.
func (s *Store) Wipe(ctx context.Context, queue string) error {
	for {
		var n int64
		if err := s.write(ctx, fmt.Sprintf("wipe queue %q", queue), s.db, func(t *tx) (err error) {
			n, err = t.exec("DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE queue = ? LIMIT 20000)", queue)
			return err
		}); err != nil || n == 0 {
			return err
		}
	}
}
