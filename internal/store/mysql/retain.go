package mysql

import (
	"context"
	"fmt"
	"time"

	"queued/internal/store"
)

// Retain deletes what is older than age; see store.Retainer.
func (s *Store) Retain(ctx context.Context, what store.Retained, age time.Duration, cursor int64, batch int) (store.Retention, error) {
	var out store.Retention
	err := s.do(ctx, "retain "+string(what), s.db, func(c *conn) error {
		out = store.Retention{}
		cutoff := fmt.Sprintf("NOW(3) - INTERVAL %d MICROSECOND", micros(age))
		var table, old, young string
		switch what {
		case store.FinishedJobs:
			table = s.t.jobs
			old = "status IN ('done', 'cancelled') AND GREATEST(finished_at, created_at) <= " + cutoff
			young = "created_at > " + cutoff // nothing created later can have ended earlier
		case store.DeadJobs:
			table, old, young = s.t.dead, "died_at <= "+cutoff, "died_at > "+cutoff
		case store.JobErrors:
			table, old, young = s.t.errors, "failed_at <= "+cutoff, "failed_at > "+cutoff
		case store.Counters, store.Daemons:
			where := s.t.daemons + " WHERE alive_till <= " + cutoff + " ORDER BY owner"
			if what == store.Counters {
				where = s.t.counters + " WHERE minute_at <= " + cutoff + " ORDER BY minute_at, owner, queue, kind"
			}
			n, err := c.exec1(fmt.Sprintf("DELETE FROM %s LIMIT %d", where, batch))
			out = store.Retention{Deleted: int(n), Done: int(n) < batch}
			return err
		default:
			return fmt.Errorf("%w: nothing called %q is retained", store.ErrNotFound, what)
		}
		var ids []int64
		seen, youngest := 0, 0
		if err := c.query(func(r row) error {
			seen++
			out.Next = r.int(0)
			if r.int(1) != 0 {
				ids = append(ids, r.int(0))
			}
			youngest += int(r.int(2))
			return nil
		}, fmt.Sprintf("SELECT id, %s, %s FROM %s WHERE id > %d ORDER BY id LIMIT %d", old, young, table, cursor, batch)); err != nil {
			return err
		}
		// Ids are given out roughly in the order of creation, so a whole batch of
		// young rows means that no older ones follow.
		out.Done = seen < batch || youngest == seen
		if out.Done {
			out.Next = 0
		}
		if len(ids) == 0 {
			return nil
		}
		n, err := c.exec1(fmt.Sprintf("DELETE FROM %s WHERE id IN (%s) AND %s", table, idList(ids), old))
		out.Deleted = int(n)
		return err
	})
	return out, err
}
