package store

import (
	"errors"
	"fmt"
)

// What kind an error of a store is, for errors.Is. Drivers' errors never need
// to be looked at outside the store that uses the driver.
var (
	// ErrUnavailable: the database can't be reached, is starting, stopping,
	// read-only, out of connections or disk, or did not answer in time. It passes by itself.
	ErrUnavailable = errors.New("database unavailable")
	// ErrSchema: a table or column is missing or not as expected.
	ErrSchema = errors.New("database schema does not fit")
	// ErrDenied: the database user lacks a privilege or can't log in.
	ErrDenied = errors.New("database access denied")
	// ErrData: the server refused a value (too long, not JSON, wrong charset).
	ErrData = errors.New("value refused by the database")
	// ErrConflict: a deadlock or lock timeout that outlasted the repeats.
	ErrConflict = errors.New("lock conflict")
	// ErrDuplicate: the unique key is taken.
	ErrDuplicate = errors.New("duplicate key")
	// ErrNotFound: there is no such row.
	ErrNotFound = errors.New("not found")
	// ErrState: the row's state doesn't allow the change.
	ErrState = errors.New("not possible in this state")
)

// SchemaError is an ErrSchema that says what is there and what to do.
type SchemaError struct {
	Have, Want int
	Hint       string // the command that mends it
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("schema is at version %d, this binary needs %d: %s", e.Have, e.Want, e.Hint)
}

// Is makes it an ErrSchema.
func (e *SchemaError) Is(target error) bool { return target == ErrSchema }
