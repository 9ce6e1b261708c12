package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	sqlite "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"queued/internal/store"
)

// kindOf says what kind of error SQLite's code in err is. nil: none of them.
func kindOf(err error) error {
	se, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return nil
	}
	switch se.Code() {
	case lib.SQLITE_CONSTRAINT_UNIQUE, lib.SQLITE_CONSTRAINT_PRIMARYKEY, lib.SQLITE_CONSTRAINT_ROWID:
		return store.ErrDuplicate
	}
	switch se.Code() & 0xff { // the rest of the code says where in SQLite it arose
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return store.ErrConflict
	case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_CANTOPEN, lib.SQLITE_READONLY, lib.SQLITE_NOMEM, lib.SQLITE_PROTOCOL:
		return store.ErrUnavailable
	case lib.SQLITE_PERM, lib.SQLITE_AUTH:
		return store.ErrDenied
	case lib.SQLITE_CONSTRAINT, lib.SQLITE_TOOBIG, lib.SQLITE_MISMATCH:
		return store.ErrData
	case lib.SQLITE_ERROR, lib.SQLITE_SCHEMA, lib.SQLITE_NOTADB:
		// SQLite has no codes of their own for a missing table or column. The
		// statements are fixed, so what it can't prepare doesn't fit the schema.
		return store.ErrSchema
	}
	return nil
}

// wrap names the operation and the error's kind. parent is the caller's context:
// a call that the caller gave up is not the database's fault.
func wrap(parent context.Context, op string, err error) error {
	kind := kindOf(err)
	if kind == store.ErrConflict { //nolint:errorlint // kindOf returns the sentinel itself
		kind, err = nil, &lockError{err} // the repeats are over
	}
	if kind != nil {
		return fmt.Errorf("%s: %w: %w", op, kind, err)
	}
	switch {
	case parent.Err() != nil && (isContext(err) || isLock(err)):
		return fmt.Errorf("%s: %w", op, context.Cause(parent))
	case isLock(err):
		return fmt.Errorf("%s: %w", op, err)
	case isContext(err):
		return fmt.Errorf("%s: %w: no answer in time", op, store.ErrUnavailable)
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", op, store.ErrNotFound)
	}
	return fmt.Errorf("%s: %w", op, err)
}

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// lockError: the operation's time was over before its turn came. That is no
// conflict about a row: nobody can write while the lock is held.
type lockError struct{ err error }

func (e *lockError) Error() string        { return "others held the lock all the time: " + e.err.Error() }
func (e *lockError) Unwrap() error        { return e.err }
func (e *lockError) Is(target error) bool { return target == store.ErrUnavailable }

func isLock(err error) bool {
	_, ok := errors.AsType[*lockError](err)
	return ok
}
