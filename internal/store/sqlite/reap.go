package sqlite

import (
	"context"
	"database/sql"
	"time"

	"queued/internal/store"
	"queued/job"
)

// Expired finds leases that have run out; see store.Reaper.
func (s *Store) Expired(ctx context.Context, grace time.Duration, limit int) (leases []store.Lease, err error) {
	err = s.read(ctx, "find expired leases", s.reads, func(t *tx) error {
		leases = nil
		var covered [][]int64
		if err := t.query("SELECT token, owner, ? - expires_at, job_ids FROM leases WHERE expires_at <= ? ORDER BY expires_at, token LIMIT ?",
			[]any{t.now, t.now - millis(grace), limit}, func(rows *sql.Rows) error {
				var l store.Lease
				var ms int64
				var set string
				if err := rows.Scan(&l.Token, &l.Owner, &ms, &set); err != nil {
					return err
				}
				ids, err := store.DecodeIDs(set)
				if err != nil {
					ids = nil // edited by hand: the sweep for orphans finds its jobs once it is gone
				}
				l.Expired = time.Duration(ms) * time.Millisecond
				leases, covered = append(leases, l), append(covered, ids)
				return nil
			}); err != nil {
			return err
		}
		for i := range leases {
			l := &leases[i]
			if err := t.query("SELECT "+jobColumns+" FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND token = ? AND status = 'running' ORDER BY id",
				[]any{jsonIDs(covered[i]), l.Token}, appendJob(&l.Jobs)); err != nil {
				return err
			}
		}
		return nil
	})
	return leases, err
}

func appendJob(list *[]*job.Job) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		j, err := scanJob(rows)
		*list = append(*list, j)
		return err
	}
}

// Reap takes the jobs of an expired lease away from their worker; see store.Reaper.
func (s *Store) Reap(ctx context.Context, token int64, grace time.Duration, writes []job.Write) (fates []store.Fate, err error) {
	err = s.write(ctx, "reap", s.db, func(t *tx) error {
		n, err := t.exec("DELETE FROM leases WHERE token = ? AND expires_at <= ?", token, t.now-millis(grace))
		if err != nil {
			return err
		}
		if n == 0 {
			return job.ErrLeaseLost
		}
		fates, err = apply(t, writes, true)
		return err
	})
	if err != nil {
		return nil, err
	}
	return fates, nil
}

// Orphans finds running rows without a lease; see store.Reaper. Nothing gets out
// of step by producers' statements here.
func (s *Store) Orphans(ctx context.Context, after int64, span int) (orphans []*job.Job, next int64, err error) {
	err = s.read(ctx, "find orphans", s.reads, func(t *tx) error {
		orphans, next = nil, 0
		var last, seen int64
		if err := t.row("SELECT coalesce(max(id), 0), count(*) FROM (SELECT id FROM jobs NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?)",
			[]any{after, span}, &last, &seen); err != nil {
			return err
		}
		if seen == int64(span) {
			next = last
		}
		return t.query("SELECT "+jobColumns+` FROM jobs NOT INDEXED WHERE id > ? AND id <= ? AND status = 'running'
AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.token = jobs.token) ORDER BY id`,
			[]any{after, last}, appendJob(&orphans))
	})
	return orphans, next, err
}
