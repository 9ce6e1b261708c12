package mysql

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"queued/internal/store"
)

// Register writes or renews a daemon's row; see store.Registrar. The UPDATE comes first:
// the row is there but for the first time.
func (s *Store) Register(ctx context.Context, d store.Daemon, ttl time.Duration) error {
	queues, err := json.Marshal(d.Queues)
	if err != nil {
		return fmt.Errorf("register daemon: %w", err)
	}
	kinds, err := json.Marshal(d.Kinds)
	if err != nil {
		return fmt.Errorf("register daemon: %w", err)
	}
	return s.do(ctx, "register daemon", s.lease, func(c *conn) error {
		// queues and kinds change at a reload.
		n, err := c.exec1(fmt.Sprintf("UPDATE %s SET alive_till = NOW(3) + INTERVAL %d MICROSECOND, queues = ?, kinds = ? WHERE owner = %d", s.t.daemons, micros(ttl), d.Owner),
			string(queues), string(kinds))
		if err != nil || n > 0 {
			return err
		}
		_, err = c.exec(fmt.Sprintf("INSERT INTO %s (owner, host, pid, version, queues, kinds, started_at, alive_till) VALUES (%d, ?, %d, ?, ?, ?, NOW(3), NOW(3) + INTERVAL %d MICROSECOND)"+
			" ON DUPLICATE KEY UPDATE alive_till = VALUES(alive_till)", s.t.daemons, d.Owner, d.PID, micros(ttl)),
			d.Host, d.Version, string(queues), string(kinds))
		return err
	})
}

// Unregister ends a daemon's row; see store.Registrar.
func (s *Store) Unregister(ctx context.Context, owner int64) error {
	return s.do(ctx, "unregister daemon", s.lease, func(c *conn) error {
		_, err := c.exec(fmt.Sprintf("UPDATE %s SET alive_till = NOW(3) WHERE owner = %d AND alive_till > NOW(3)", s.t.daemons, owner))
		return err
	})
}

// LiveDaemons lists who runs; see store.Registrar.
func (s *Store) LiveDaemons(ctx context.Context) ([]store.Daemon, error) {
	return s.listDaemons(ctx, 0)
}

// listDaemons lists those that are alive or were within the last d.
func (s *Store) listDaemons(ctx context.Context, d time.Duration) (list []store.Daemon, err error) {
	err = s.do(ctx, "list daemons", s.db, func(c *conn) error {
		list = list[:0]
		return c.query(func(r row) error {
			d := store.Daemon{Owner: r.int(0), Host: r.str(1), PID: int(r.int(2)), Version: r.str(3), Started: r.time(6)}
			if err := json.Unmarshal(r.bytes(4), &d.Queues); err != nil {
				return fmt.Errorf("queues of daemon %d: %w", d.Owner, err)
			}
			if err := json.Unmarshal(r.bytes(5), &d.Kinds); err != nil {
				return fmt.Errorf("kinds of daemon %d: %w", d.Owner, err)
			}
			list = append(list, d)
			return nil
		}, fmt.Sprintf("SELECT owner, host, pid, version, queues, kinds, started_at FROM %s WHERE alive_till > NOW(3) - INTERVAL %d MICROSECOND ORDER BY started_at, owner", s.t.daemons, micros(d)))
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
