package mysql

import (
	"context"
	"fmt"
	"slices"
	"time"

	"queued/internal/store"
)

// Renew lets leases end later; see store.Leaser. renewals is raised so that each
// renewal changes the row: the row count is right whether it counts matched or changed rows.
func (s *Store) Renew(ctx context.Context, owner int64, lease time.Duration, tokens []int64) (lost []int64, err error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	tokens = slices.Sorted(slices.Values(tokens))
	list := idList(tokens)
	err = s.do(ctx, "renew leases", s.lease, func(c *conn) error {
		lost = nil
		n, err := c.exec1(fmt.Sprintf("UPDATE %s SET expires_at = NOW(3) + INTERVAL %d MICROSECOND, renewals = renewals + 1 WHERE token IN (%s) AND owner = %d",
			s.t.leases, micros(lease), list, owner))
		if err != nil || n == int64(len(tokens)) {
			return err
		}
		kept := map[int64]bool{}
		if err := c.query(func(r row) error { kept[r.int(0)] = true; return nil },
			fmt.Sprintf("SELECT token FROM %s WHERE token IN (%s) AND owner = %d", s.t.leases, list, owner)); err != nil {
			return err
		}
		for _, t := range tokens {
			if !kept[t] {
				lost = append(lost, t)
			}
		}
		return nil
	})
	return lost, err
}

// Verify finds jobs that were changed from outside; see store.Leaser.
func (s *Store) Verify(ctx context.Context, held []store.Held) (lost []store.Held, err error) {
	if len(held) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(held))
	for i, h := range held {
		ids[i] = h.ID
	}
	slices.Sort(ids)
	err = s.do(ctx, "verify running jobs", s.lease, func(c *conn) error {
		lost = nil
		running := map[store.Held]bool{}
		if err := c.query(func(r row) error { running[store.Held{ID: r.int(0), Token: r.int(1)}] = true; return nil },
			fmt.Sprintf("SELECT id, token FROM %s WHERE id IN (%s) AND status = 'running'", s.t.jobs, idList(ids))); err != nil {
			return err
		}
		for _, h := range held {
			if !running[h] {
				lost = append(lost, h)
			}
		}
		return nil
	})
	return lost, err
}
