package mysql

import (
	"context"
	"fmt"
	"time"

	"queued/internal/store"
	"queued/job"
)

// Expired finds leases that have run out; see store.Reaper.
func (s *Store) Expired(ctx context.Context, grace time.Duration, limit int) (leases []store.Lease, err error) {
	err = s.do(ctx, "find expired leases", s.db, func(c *conn) error {
		leases = nil
		var covered [][]int64
		if err := c.query(func(r row) error {
			ids, err := store.DecodeIDs(r.str(2))
			if err != nil {
				// Edited by hand: the sweep for orphans finds its jobs once it is gone.
				ids = nil
			}
			covered = append(covered, ids)
			leases = append(leases, store.Lease{Token: r.int(0), Owner: r.int(1), Expired: time.Duration(r.int(3)) * time.Microsecond})
			return nil
		}, fmt.Sprintf("SELECT token, owner, job_ids, TIMESTAMPDIFF(MICROSECOND, expires_at, NOW(3)) FROM %s FORCE INDEX (leases_expires)"+
			" WHERE expires_at <= NOW(3) - INTERVAL %d MICROSECOND ORDER BY expires_at LIMIT %d", s.t.leases, micros(grace), limit)); err != nil {
			return err
		}
		for i, ids := range covered {
			if len(ids) == 0 {
				continue
			}
			l := &leases[i]
			if err := c.query(func(r row) error { l.Jobs = append(l.Jobs, s.scanJob(r, false)); return nil },
				fmt.Sprintf("SELECT %s FROM %s WHERE id IN (%s) AND token = %d AND status = 'running'", jobColumns, s.t.jobs, idList(ids), l.Token)); err != nil {
				return err
			}
		}
		return nil
	})
	return leases, err
}

// Reap takes the jobs of an expired lease away from their worker; see store.Reaper.
// Deleting the lease first makes reapers wait for each other and
// for the owner's renewal: only one of them finds the row.
func (s *Store) Reap(ctx context.Context, token int64, grace time.Duration, writes []job.Write) ([]store.Fate, error) {
	v, err := s.probe(ctx)
	if err != nil {
		return nil, fmt.Errorf("reap: %w", err)
	}
	var fates []store.Fate
	reap := func(d degrade) error {
		return s.do(ctx, "reap", s.db, func(c *conn) error {
			c.inTx = true
			n, err := c.exec(fmt.Sprintf("START TRANSACTION; DELETE FROM %s WHERE token = %d AND expires_at <= NOW(3) - INTERVAL %d MICROSECOND",
				s.t.leases, token, micros(grace)))
			if err != nil {
				return err
			}
			if n[1] == 0 {
				return job.ErrLeaseLost
			}
			if fates, err = s.apply(c, v, "", writes, d, true); err != nil {
				return err
			}
			if _, err := c.exec("COMMIT"); err != nil {
				return err
			}
			c.inTx = false
			return nil
		})
	}
	for d := nothing; ; d++ {
		if err := reap(d); err == nil || !refused(err) || d == dropRows {
			return fates, err
		}
	}
}

// Orphans finds running rows without a lease; see store.Reaper.
func (s *Store) Orphans(ctx context.Context, after int64, span int) (orphans []*job.Job, next int64, err error) {
	v, err := s.probe(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("find orphans: %w", err)
	}
	err = s.do(ctx, "find orphans", s.db, func(c *conn) error {
		orphans, next = nil, 0
		var last, seen int64
		if err := c.query(func(r row) error { last, seen = r.int(0), r.int(1); return nil },
			fmt.Sprintf("SELECT MAX(id), COUNT(*) FROM (SELECT id FROM %s WHERE id > %d ORDER BY id LIMIT %d) AS part", s.t.jobs, after, span)); err != nil || seen == 0 {
			return err
		}
		// One statement, one snapshot: a claim's lease and rows appear together.
		if err := c.query(func(r row) error { orphans = append(orphans, s.scanJob(r, false)); return nil },
			fmt.Sprintf("SELECT %s FROM %s AS j WHERE id > %d AND id <= %d AND status = 'running' AND NOT EXISTS (SELECT 1 FROM %s AS l WHERE l.token = j.token) ORDER BY id",
				jobColumns, s.t.jobs, after, last, s.t.leases)); err != nil {
			return err
		}
		if !v.virtual {
			if err := s.mendPending(c, after, last); err != nil {
				return err
			}
		}
		if seen == int64(span) {
			next = last
		}
		return nil
	})
	return orphans, next, err
}

// mendPending makes ready rows visible that a statement from outside made ready
// without pending, where that column does not follow by itself.
func (s *Store) mendPending(c *conn, after, last int64) error {
	var ids []int64
	if err := c.query(func(r row) error { ids = append(ids, r.int(0)); return nil },
		fmt.Sprintf("SELECT id FROM %s WHERE id > %d AND id <= %d AND status = 'ready' AND pending IS NULL ORDER BY id", s.t.jobs, after, last)); err != nil || len(ids) == 0 {
		return err
	}
	_, err := c.exec(fmt.Sprintf("UPDATE %s SET pending = 1 WHERE id IN (%s) AND status = 'ready'", s.t.jobs, idList(ids)))
	return err
}
