// Package storetest is the one suite that every store passes, on every server:
// what the comments in package store promise, and the failures that
// table-backed queues are known for. Its files carry the verbs of a job's life.
//
// A store's test calls Run with a Driver. Every test makes a database of its own
// and runs in parallel with the others. Nothing sleeps: time passes by moving
// every stored time back, or under a clock that stands still.
package storetest

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"queued/internal/store"
)

// Driver is a kind of store, or a kind of server that one is tested on.
type Driver struct {
	Name string
	// Open makes an empty database of its own; it ends with the test.
	Open func(tb testing.TB) Database
	// NoPad: the server tells "a" and "a " apart in identifiers.
	NoPad bool
	// ChecksJSON: the server refuses a payload that is not JSON.
	ChecksJSON bool
}

// Database is one empty database, without queued's tables.
type Database struct {
	// Dialect is the SQL it speaks: "mysql" or "sqlite".
	Dialect string
	// SQL connects to it as a producer's program would, with the defaults of driver
	// and server but for the session's time zone, which is UTC.
	SQL *sql.DB
	// Store opens a new store on it. Where now is not zero the store's clock
	// stands still at now. The suite closes it.
	Store func(now time.Time) (store.Store, error)
}

// law is one test. Its name is what must hold.
type law struct {
	name string
	test func(t *testing.T, f *fixture)
}

// Run runs the whole suite.
func Run(t *testing.T, d Driver) {
	t.Helper()
	for _, l := range slices.Concat(enqueueLaws, claimLaws, leaseLaws, finishLaws, reapLaws, retainLaws, inspectLaws, controlLaws, daemonLaws, raceLaws, modelLaws) {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.test(t, newFixture(t, d))
		})
	}
	for _, l := range migrateLaws {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.test(t, newEmptyFixture(t, d))
		})
	}
}
