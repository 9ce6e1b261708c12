package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"queued/internal/store"
)

// Renew lets leases end later; see store.Leaser.
func (s *Store) Renew(ctx context.Context, owner int64, lease time.Duration, tokens []int64) (lost []int64, err error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	err = s.write(ctx, "renew leases", s.lease, func(t *tx) error {
		lost = nil
		kept := map[int64]bool{}
		if err := t.query("UPDATE leases SET expires_at = ?, renewals = renewals + 1 WHERE owner = ? AND token IN (SELECT value FROM json_each(?)) RETURNING token",
			[]any{t.now + millis(lease), owner, jsonIDs(tokens)}, func(rows *sql.Rows) error {
				var token int64
				err := rows.Scan(&token)
				kept[token] = true
				return err
			}); err != nil {
			return err
		}
		for _, token := range slices.Sorted(slices.Values(tokens)) {
			if !kept[token] {
				lost = append(lost, token)
				kept[token] = true // named twice, lost once
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
	err = s.read(ctx, "verify running jobs", s.lease, func(t *tx) error {
		lost = nil
		running := map[store.Held]bool{}
		if err := t.query("SELECT id, token FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND status = 'running'",
			[]any{jsonIDs(ids)}, func(rows *sql.Rows) error {
				var h store.Held
				err := rows.Scan(&h.ID, &h.Token)
				running[h] = true
				return err
			}); err != nil {
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
