package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"queued/internal/store"
)

// tx is one transaction. now is the store's clock, the same for all of it.
type tx struct {
	*conn
	ctx context.Context
	now int64 // milliseconds since 1970
}

// write runs fn in a transaction that has the write lock. It is repeated while
// another process holds that lock, so fn must not keep anything from an earlier try.
//
// The caller's cancel and the operation timeout end the wait for the lock. What
// comes behind is short and runs to its end, so that no answer is ever lost.
func (s *Store) write(ctx context.Context, op string, p *pool, fn func(*tx) error) error {
	return s.do(ctx, op, func(ctx context.Context) error {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return &lockError{ctx.Err()}
		}
		defer func() { <-s.turn }()
		if !s.breath.take(ctx) {
			return &lockError{ctx.Err()}
		}
		return s.inTx(ctx, p, "BEGIN IMMEDIATE", func(t *tx) error {
			t.ctx = context.WithoutCancel(ctx)
			begun := time.Now()
			defer func() { s.breath.held(begun) }()
			if err := fn(t); err != nil {
				return err
			}
			if _, err := t.exec("COMMIT"); err != nil {
				return err
			}
			s.cutWAL(t)
			return nil
		})
	})
}

// cutWAL empties the WAL when it has grown too large. SQLite itself begins it anew
// only when it meets a moment without readers, and under steady reads there is none;
// so this process's readers are held up for it, for readersWait at most. While somebody reads for longer it
// is tried again once a second. That it fails is no fault of the transaction's.
func (s *Store) cutWAL(t *tx) {
	info, err := os.Stat(s.path + "-wal")
	if err != nil || info.Size() < 2*checkpointPages*pageSize || time.Since(s.checkpointed) < time.Second {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, readersWait)
	defer cancel()
	if resume, ok := s.reads.pause(ctx); ok {
		_, _ = t.exec("PRAGMA wal_checkpoint(TRUNCATE)")
		resume()
	}
	s.checkpointed = time.Now()
}

// read runs fn in a transaction that sees one state of the database.
func (s *Store) read(ctx context.Context, op string, p *pool, fn func(*tx) error) error {
	return s.do(ctx, op, func(ctx context.Context) error {
		return s.inTx(ctx, p, "BEGIN", func(t *tx) error {
			if err := fn(t); err != nil {
				return err
			}
			_, err := t.exec("COMMIT")
			return err
		})
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
		return ctx.Err() == nil
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

// breath leaves the lock free for a part of the time for which this process has
// it. Others who wait for the lock look for it every now and then, and would hardly
// ever find it free between transactions that follow each other closely.
type breath struct {
	owed  time.Duration
	freed time.Time // when the lock was last given back
}

const (
	breathShare = 8                    // of the time that the lock is held, one part in so many
	breathLeast = 2 * time.Millisecond // a shorter pause would take longer than it says
)

// held notes that the lock was held from begun until now.
func (b *breath) held(begun time.Time) {
	b.freed = time.Now()
	b.owed += b.freed.Sub(begun) / breathShare
}

// take waits if a pause is due, and reports whether ctx is still alive.
func (b *breath) take(ctx context.Context) bool {
	if b.owed -= time.Since(b.freed); b.owed < 0 {
		b.owed = 0
	}
	if b.owed < breathLeast {
		return ctx.Err() == nil
	}
	d := b.owed
	b.owed = 0
	return sleep(ctx, d)
}

// inTx runs fn, which commits, on a connection of p behind begin.
func (s *Store) inTx(ctx context.Context, p *pool, begin string, fn func(*tx) error) error {
	c, err := p.get(ctx)
	if err != nil {
		return err
	}
	clean := false
	defer func() { p.put(c, clean) }()
	t := &tx{conn: c, ctx: ctx}
	if _, err := t.exec(begin); err != nil {
		clean = kindOf(err) == store.ErrConflict //nolint:errorlint // kindOf returns the sentinel itself
		if isContext(err) {
			return &lockError{err}
		}
		return err
	}
	// Read behind the wait for the lock: a delay counts from the write.
	t.now = s.opts.Now().UnixMilli()
	if err := fn(t); err != nil {
		// A connection whose transaction can't be rolled back is closed, which has the
		// same effect. After some errors (disk full) SQLite has done it by itself.
		t.ctx = context.WithoutCancel(ctx)
		_, e := t.exec("ROLLBACK")
		clean = e == nil
		return err
	}
	clean = true
	return nil
}

// exec runs one statement and returns how many rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	st, err := t.prepared(t.ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(t.ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// query hands each row to each.
func (t *tx) query(query string, args []any, each func(rows *sql.Rows) error) error {
	st, err := t.prepared(t.ctx, query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(t.ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close() // rows.Err has it
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// row reads one row; sql.ErrNoRows if there is none.
func (t *tx) row(query string, args []any, dest ...any) error {
	st, err := t.prepared(t.ctx, query)
	if err != nil {
		return err
	}
	return st.QueryRowContext(t.ctx, args...).Scan(dest...)
}

// millis is d in milliseconds, rounded up so that no wait is shortened.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
