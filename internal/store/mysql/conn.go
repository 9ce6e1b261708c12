package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	driversql "github.com/go-sql-driver/mysql"

	"queued/internal/store"
	"queued/job"
)

// maxRepeats is how often a transaction is tried when the server reports a
// deadlock or a lock timeout.
const maxRepeats = 10

// conn is one connection during one operation. It speaks to the driver directly:
// several statements go in one packet, each one's row count comes back, and rows are read
// without database/sql's conversions.
type conn struct {
	ctx   context.Context
	dc    driver.Conn
	meter *store.Meter
	inTx  bool // a transaction may be open
}

// do runs fn on a connection of db within the operation timeout. fn is repeated
// after a deadlock or lock timeout, on the same connection, so it must not keep anything
// from an earlier try. Errors come back with op and kind.
func (s *Store) do(ctx context.Context, op string, db *sql.DB, fn func(*conn) error) error {
	err := s.doRaw(ctx, db, fn)
	if err == nil {
		return nil
	}
	err = wrap(ctx, op, err)
	if errors.Is(err, store.ErrUnavailable) {
		s.meter.Unavailable.Add(1)
	}
	return err
}

func (s *Store) doRaw(parent context.Context, db *sql.DB, fn func(*conn) error) error {
	ctx, cancel := context.WithTimeout(parent, s.opts.OpTimeout)
	defer cancel()
	sc, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer sc.Close() // gives the connection back; its state was dealt with in Raw
	var opErr error
	err = sc.Raw(func(dc any) error {
		c := &conn{ctx: ctx, dc: dc.(driver.Conn), meter: &s.meter}
		for try := 1; ; try++ {
			opErr = fn(c)
			if opErr == nil && !c.inTx {
				return nil
			}
			code := codeOf(opErr)
			if opErr != nil && !answered(opErr) && !isSentinel(opErr) || fatal(code) {
				return driver.ErrBadConn // state unknown, or a server that has become read-only: don't use it again
			}
			if c.inTx {
				if err := c.rollback(); err != nil {
					return driver.ErrBadConn
				}
			}
			if kindOf(code) != store.ErrConflict || try == maxRepeats { //nolint:errorlint // kindOf returns the sentinel itself
				return nil
			}
			if code == 1205 {
				s.meter.LockWaits.Add(1)
			} else {
				s.meter.Deadlocks.Add(1)
			}
			// Jittered, so that the two sides of a deadlock don't meet again.
			t := time.NewTimer(time.Duration(try) * time.Duration(1+rand.IntN(5)) * time.Millisecond)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return nil
			}
		}
	})
	if opErr != nil {
		return opErr
	}
	return err
}

// isSentinel says whether err was made by the store itself and not by the connection.
func isSentinel(err error) bool {
	for _, s := range []error{store.ErrNotFound, store.ErrState, store.ErrDuplicate, store.ErrSchema, job.ErrLeaseLost} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

// fatal says whether the connection leads to a server that is of no use any more.
func fatal(code uint16) bool {
	return code != 0 && kindOf(code) == store.ErrUnavailable //nolint:errorlint // kindOf returns the sentinel itself
}

func named(args []any) []driver.NamedValue {
	nv := make([]driver.NamedValue, len(args))
	for i, a := range args {
		nv[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return nv
}

// exec sends one or more statements that return no rows, in one packet, and returns
// each one's row count. args are int64, string or nil.
func (c *conn) exec(text string, args ...any) ([]int64, error) {
	c.meter.RoundTrips.Add(1)
	res, err := c.dc.(driver.ExecerContext).ExecContext(c.ctx, text, named(args))
	if err != nil {
		return nil, err
	}
	return res.(driversql.Result).AllRowsAffected(), nil
}

// exec1 is exec for one statement.
func (c *conn) exec1(text string, args ...any) (int64, error) {
	n, err := c.exec(text, args...)
	if err != nil {
		return 0, err
	}
	return n[len(n)-1], nil
}

// query sends one or more statements in one packet and hands each row of each
// result to row. The row is valid during the call only.
func (c *conn) query(row func(r row) error, text string, args ...any) (err error) {
	c.meter.RoundTrips.Add(1)
	rows, err := c.dc.(driver.QueryerContext).QueryContext(c.ctx, text, named(args))
	if err != nil {
		return err
	}
	defer func() {
		// The rest must be read before the connection can be used; an error in
		// it is a statement's that came behind.
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	sets := rows.(driver.RowsNextResultSet)
	var vals []driver.Value
	for {
		if n := len(rows.Columns()); n > 0 {
			if cap(vals) < n {
				vals = make([]driver.Value, n)
			}
			vals = vals[:n]
			for {
				if err := rows.Next(vals); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return err
				}
				if err := row(vals); err != nil {
					return err
				}
			}
		}
		if !sets.HasNextResultSet() {
			return nil
		}
		if err := sets.NextResultSet(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (c *conn) rollback() error {
	c.inTx = false
	_, err := c.exec("ROLLBACK")
	return err
}

// row is one row as the driver gives it.
type row []driver.Value

func (r row) int(i int) int64 {
	switch v := r[i].(type) {
	case int64:
		return v
	case uint64:
		return int64(v) // ids and counts
	case []byte: // DECIMAL, the type of SUM
		n, _ := strconv.ParseInt(string(v), 10, 64)
		return n
	}
	return 0
}

func (r row) str(i int) string {
	switch v := r[i].(type) {
	case []byte:
		return string(v)
	case string:
		return v
	case nil:
		return ""
	}
	return fmt.Sprint(r[i])
}

func (r row) bytes(i int) []byte {
	if r[i] == nil {
		return nil
	}
	return []byte(r.str(i))
}

func (r row) time(i int) time.Time {
	t, _ := r[i].(time.Time)
	return t
}

// timePtr is nil for NULL and for a time in 1970, which stands for "not yet"
// where a NULL would make the row grow later.
func (r row) timePtr(i int) *time.Time {
	if t, ok := r[i].(time.Time); ok && t.Year() > 1970 {
		return &t
	}
	return nil
}

// appendIDs writes a list for IN (...).
func appendIDs(b []byte, ids []int64) []byte {
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return b
}

func idList(ids []int64) string { return string(appendIDs(make([]byte, 0, 12*len(ids)), ids)) }

// micros is a duration as SQL's INTERVAL ? MICROSECOND takes it.
func micros(d time.Duration) int64 { return d.Microseconds() }
