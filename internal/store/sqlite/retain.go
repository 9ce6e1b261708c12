package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"queued/internal/store"
)

// Retain deletes what is older than age; see store.Retainer.
func (s *Store) Retain(ctx context.Context, what store.Retained, age time.Duration, cursor int64, batch int) (store.Retention, error) {
	op := "retain " + string(what)
	switch what {
	case store.FinishedJobs:
		// A job that was created later can't have ended earlier.
		return s.retainByID(ctx, op, "jobs", "status IN ('done', 'cancelled') AND finished_at <= ?1", "created_at > ?1", age, cursor, batch)
	case store.DeadJobs:
		return s.retainByID(ctx, op, "dead_jobs", "died_at <= ?1", "died_at > ?1", age, cursor, batch)
	case store.JobErrors:
		return s.retainByID(ctx, op, "job_errors", "failed_at <= ?1", "failed_at > ?1", age, cursor, batch)
	case store.Counters:
		return s.retainAll(ctx, op, `DELETE FROM counters WHERE (minute_at, owner, queue, kind) IN
(SELECT minute_at, owner, queue, kind FROM counters WHERE minute_at <= ? ORDER BY minute_at LIMIT ?)`, age, batch)
	case store.Daemons:
		return s.retainAll(ctx, op, "DELETE FROM daemons WHERE owner IN (SELECT owner FROM daemons WHERE alive_till <= ? ORDER BY owner LIMIT ?)", age, batch)
	}
	return store.Retention{}, fmt.Errorf("%s: %w: nothing of that name is retained", op, store.ErrNotFound)
}

// retainByID looks at a batch of rows by id. old and young are conditions on a row, with
// the time before which rows are old as ?1. It looks before it locks, since
// mostly there is nothing to delete.
func (s *Store) retainByID(ctx context.Context, op, table, old, young string, age time.Duration, cursor int64, batch int) (store.Retention, error) {
	var out store.Retention
	var ids []int64
	var cutoff int64
	err := s.read(ctx, op, s.reads, func(t *tx) error {
		out, ids, cutoff = store.Retention{}, nil, t.now-millis(age)
		seen, youngs := 0, 0
		err := t.query(fmt.Sprintf("SELECT id, coalesce(%s, 0), coalesce(%s, 0) FROM %s NOT INDEXED WHERE id > ?2 ORDER BY id LIMIT ?3", old, young, table),
			[]any{cutoff, cursor, batch}, func(rows *sql.Rows) error {
				var id int64
				var isOld, isYoung bool
				if err := rows.Scan(&id, &isOld, &isYoung); err != nil {
					return err
				}
				seen++
				out.Next = id
				if isOld {
					ids = append(ids, id)
				}
				if isYoung {
					youngs++
				}
				return nil
			})
		// Ids are given out roughly in the order of creation, so a whole batch of
		// young rows means that no older ones follow.
		if out.Done = seen < batch || youngs == seen; out.Done {
			out.Next = 0
		}
		return err
	})
	if err != nil || len(ids) == 0 {
		return out, err
	}
	err = s.write(ctx, op, s.db, func(t *tx) error {
		n, err := t.exec(fmt.Sprintf("DELETE FROM %s WHERE id IN (SELECT value FROM json_each(?2)) AND %s", table, old), cutoff, jsonIDs(ids))
		out.Deleted = int(n)
		return err
	})
	return out, err
}

// retainAll deletes from a table that stays small, in the order of its key.
func (s *Store) retainAll(ctx context.Context, op, query string, age time.Duration, batch int) (out store.Retention, err error) {
	err = s.write(ctx, op, s.db, func(t *tx) error {
		n, err := t.exec(query, t.now-millis(age), batch)
		out = store.Retention{Deleted: int(n), Done: int(n) < batch}
		return err
	})
	return out, err
}
