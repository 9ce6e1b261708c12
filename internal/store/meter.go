package store

import "sync/atomic"

// Meter counts the work of a store. All counters only rise.
type Meter struct {
	RoundTrips  atomic.Int64 // requests sent to the server and answered or not
	Deadlocks   atomic.Int64 // error 1213 (SQLite: busy) met and repeated
	LockWaits   atomic.Int64 // error 1205 met and repeated
	Unavailable atomic.Int64 // calls that ended in ErrUnavailable
	Uncertain   atomic.Int64 // commits whose answer was lost and whose effect was looked up
}
