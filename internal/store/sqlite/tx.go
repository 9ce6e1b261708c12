package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"queued/internal/store"
)

// tx is one transaction. now is the store's clock, the same for all of it.
type tx struct {
	*sql.Tx
	ctx context.Context
	now int64 // milliseconds since 1970
}

// write runs fn in a transaction that has the write lock. It is repeated while
// another process holds that lock, so fn must not keep anything from an earlier try.
func (s *Store) write(ctx context.Context, op string, db *sql.DB, fn func(*tx) error) error {
	return s.do(ctx, op, func(ctx context.Context) error {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return &lockError{ctx.Err()}
		}
		defer func() { <-s.turn }()
		if !sleep(ctx, time.Until(s.rest)) {
			return &lockError{ctx.Err()}
		}
		var begun time.Time
		err := s.inTx(ctx, db, nil, func(t *tx) error {
			begun = time.Now()
			return fn(t)
		})
		if !begun.IsZero() {
			end := time.Now()
			s.rest = end.Add(end.Sub(begun) / restShare)
		}
		return err
	})
}

// read runs fn in a transaction that sees one state of the database.
func (s *Store) read(ctx context.Context, op string, db *sql.DB, fn func(*tx) error) error {
	return s.do(ctx, op, func(ctx context.Context) error {
		return s.inTx(ctx, db, &sql.TxOptions{ReadOnly: true}, fn)
	})
}

// do tries fn, within the operation timeout, until the lock that it needs is free.
func (s *Store) do(parent context.Context, op string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, s.opts.OpTimeout)
	defer cancel()
	for {
		s.meter.RoundTrips.Add(1)
		err := fn(ctx)
		if err == nil {
			return nil
		}
		// Different waits in each process, so that they don't knock together.
		if kindOf(err) == store.ErrConflict && sleep(ctx, time.Duration(1+rand.IntN(5))*time.Millisecond) { //nolint:errorlint // kindOf returns the sentinel itself
			s.meter.Deadlocks.Add(1)
			continue
		}
		err = wrap(parent, op, err)
		if errors.Is(err, store.ErrUnavailable) {
			s.meter.Unavailable.Add(1)
		}
		return err
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Store) inTx(ctx context.Context, db *sql.DB, o *sql.TxOptions, fn func(*tx) error) error {
	stx, err := db.BeginTx(ctx, o)
	if isContext(err) {
		return &lockError{err}
	}
	if err != nil {
		return err
	}
	// Read behind the wait for the lock: a delay counts from the write.
	if err := fn(&tx{Tx: stx, ctx: ctx, now: s.opts.Now().UnixMilli()}); err != nil {
		if e := stx.Rollback(); e != nil && !errors.Is(e, sql.ErrTxDone) {
			return errors.Join(err, fmt.Errorf("roll back: %w", e))
		}
		return err
	}
	return stx.Commit()
}

// exec runs one statement and returns how many rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	res, err := t.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// query hands each row to each.
func (t *tx) query(query string, args []any, each func(rows *sql.Rows) error) error {
	rows, err := t.QueryContext(t.ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has it
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row reads one row; sql.ErrNoRows if there is none.
func (t *tx) row(query string, args []any, dest ...any) error {
	return t.QueryRowContext(t.ctx, query, args...).Scan(dest...)
}

// millis is d in milliseconds, rounded up so that no wait is shortened.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
