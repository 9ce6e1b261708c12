package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"queued/internal/store"
)

var _ store.Bencher = (*Store)(nil)

// NaiveStep claims and finishes one job; see store.Bencher.
func (s *Store) NaiveStep(ctx context.Context, queue string) (found bool, err error) {
	v, err := s.probe(ctx)
	if err != nil {
		return false, err
	}
	lock := " FOR UPDATE"
	if v.hasSkipLocked {
		lock += " SKIP LOCKED"
	}
	var id int64
	if err := s.do(ctx, "claim one", s.db, func(c *conn) error {
		id = 0
		c.inTx = true
		if _, err := c.exec("START TRANSACTION"); err != nil {
			return err
		}
		if err := c.query(func(r row) error { id = r.int(0); return nil },
			"SELECT id, kind, payload, attempts FROM "+s.t.jobs+" WHERE queue = ? AND pending = 1 AND priority = 0 AND available_at <= NOW(3) ORDER BY available_at, id LIMIT 1"+lock, queue); err != nil || id == 0 {
			return err
		}
		if _, err := c.exec(fmt.Sprintf("UPDATE %s SET status = 'running', attempts = attempts + 1, claimed_at = NOW(3)%s WHERE id = %d", s.t.jobs, v.pendingSet(false), id)); err != nil {
			return err
		}
		if _, err := c.exec("COMMIT"); err != nil {
			return err
		}
		c.inTx = false
		return nil
	}); err != nil || id == 0 {
		return false, err
	}
	return true, s.do(ctx, "finish one", s.db, func(c *conn) error {
		_, err := c.exec(fmt.Sprintf("UPDATE %s SET status = 'done', finished_at = NOW(3) WHERE id = %d", s.t.jobs, id))
		return err
	})
}

// JobIDs lists ids; see store.Bencher.
func (s *Store) JobIDs(ctx context.Context, queue string) (ids []int64, err error) {
	err = s.do(ctx, "list ids", s.db, func(c *conn) error {
		ids = ids[:0]
		return c.query(func(r row) error { ids = append(ids, r.int(0)); return nil },
			"SELECT id FROM "+s.t.jobs+" FORCE INDEX (jobs_poll) WHERE queue = ? ORDER BY id", queue)
	})
	return ids, err
}

// Touch updates rows; see store.Bencher.
func (s *Store) Touch(ctx context.Context, ids []int64) error {
	return s.do(ctx, "touch rows", s.db, func(c *conn) error {
		_, err := c.exec(fmt.Sprintf("UPDATE %s SET replays = replays + 1 WHERE id IN (%s)", s.t.jobs, idList(ids)))
		return err
	})
}

// FillDone inserts finished rows; see store.Bencher.
func (s *Store) FillDone(ctx context.Context, queue string, n int) error {
	v, err := s.probe(ctx)
	if err != nil {
		return err
	}
	pending, null := "", ""
	if !v.virtual {
		pending, null = ", pending", ", NULL"
	}
	for n > 0 {
		batch := min(n, 2000)
		var b strings.Builder
		fmt.Fprintf(&b, "INSERT INTO %s (queue, kind, payload, status, attempts, token, claimed_at, finished_at%s) VALUES ", s.t.jobs, pending)
		args := make([]any, batch)
		for i := range batch {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString("(?, 'queued-bench', '{}', 'done', 1, 1, NOW(3), NOW(3)" + null + ")")
			args[i] = queue
		}
		if err := s.do(ctx, "fill with done rows", s.db, func(c *conn) error { _, err := c.exec(b.String(), args...); return err }); err != nil {
			return err
		}
		n -= batch
	}
	return nil
}

// HoldSnapshot opens a snapshot; see store.Bencher.
func (s *Store) HoldSnapshot(ctx context.Context) (release func() error, err error) {
	sc, err := s.db.Conn(ctx)
	if err != nil {
		return nil, wrap(ctx, "hold a snapshot", err)
	}
	for _, text := range []string{
		"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT",
	} {
		if _, err := sc.ExecContext(ctx, text); err != nil {
			return nil, errors.Join(wrap(ctx, "hold a snapshot", err), sc.Close())
		}
	}
	return func() error {
		_, err := sc.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(err, sc.Close())
	}, nil
}

// Wipe deletes a queue's rows; see store.Bencher.
func (s *Store) Wipe(ctx context.Context, queue string) error {
	for {
		ids, err := s.someIDs(ctx, queue, 2000)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := s.do(ctx, "wipe the queue", s.db, func(c *conn) error {
			_, err := c.exec(fmt.Sprintf("DELETE FROM %s WHERE id IN (%s)", s.t.jobs, idList(ids)))
			return err
		}); err != nil {
			return err
		}
	}
}

func (s *Store) someIDs(ctx context.Context, queue string, n int) (ids []int64, err error) {
	err = s.do(ctx, "list ids", s.db, func(c *conn) error {
		ids = ids[:0]
		return c.query(func(r row) error { ids = append(ids, r.int(0)); return nil },
			fmt.Sprintf("SELECT id FROM (SELECT id FROM %s FORCE INDEX (jobs_poll) WHERE queue = ? LIMIT %d) AS part ORDER BY id", s.t.jobs, n), queue)
	})
	return ids, err
}
