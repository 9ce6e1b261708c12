package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"queued/internal/store"
)

// Register writes or renews a daemon's row; see store.Registrar.
func (s *Store) Register(ctx context.Context, d store.Daemon, ttl time.Duration) error {
	queues, err := json.Marshal(d.Queues)
	if err != nil {
		return fmt.Errorf("register daemon: %w", err)
	}
	kinds, err := json.Marshal(d.Kinds)
	if err != nil {
		return fmt.Errorf("register daemon: %w", err)
	}
	return s.write(ctx, "register daemon", s.lease, func(t *tx) error {
		_, err := t.exec(`INSERT INTO daemons (owner, host, pid, version, queues, kinds, started_at, alive_till) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET alive_till = excluded.alive_till, queues = excluded.queues, kinds = excluded.kinds`,
			d.Owner, d.Host, d.PID, d.Version, string(queues), string(kinds), t.now, t.now+millis(ttl))
		return err
	})
}

// Unregister ends a daemon's row; see store.Registrar.
func (s *Store) Unregister(ctx context.Context, owner int64) error {
	return s.write(ctx, "unregister daemon", s.lease, func(t *tx) error {
		_, err := t.exec("UPDATE daemons SET alive_till = ?1 WHERE owner = ?2 AND alive_till > ?1", t.now, owner)
		return err
	})
}

// LiveDaemons lists who runs; see store.Registrar.
func (s *Store) LiveDaemons(ctx context.Context) ([]store.Daemon, error) {
	return s.listDaemons(ctx, 0)
}

// listDaemons lists those that are alive or were within the last d.
func (s *Store) listDaemons(ctx context.Context, d time.Duration) (list []store.Daemon, err error) {
	err = s.read(ctx, "list daemons", s.reads, func(t *tx) error {
		list = nil
		return t.query("SELECT owner, host, pid, version, queues, kinds, started_at FROM daemons WHERE alive_till > ? ORDER BY started_at, owner",
			[]any{t.now - millis(d)}, func(rows *sql.Rows) error {
				var d store.Daemon
				var queues, kinds []byte
				var started int64
				if err := rows.Scan(&d.Owner, &d.Host, &d.PID, &d.Version, &queues, &kinds, &started); err != nil {
					return err
				}
				if err := json.Unmarshal(queues, &d.Queues); err != nil {
					return fmt.Errorf("queues of daemon %d: %w", d.Owner, err)
				}
				if err := json.Unmarshal(kinds, &d.Kinds); err != nil {
					return fmt.Errorf("kinds of daemon %d: %w", d.Owner, err)
				}
				d.Started = atMillis(started)
				list = append(list, d)
				return nil
			})
	})
	return list, err
}

// KnownKinds collects what daemons run; see store.Registrar.
func (s *Store) KnownKinds(ctx context.Context) ([]string, error) {
	daemons, err := s.listDaemons(ctx, store.KnownFor)
	if err != nil {
		return nil, err
	}
	var kinds []string
	for _, d := range daemons {
		kinds = append(kinds, d.Kinds...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}
