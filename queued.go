// Package queued is for Go programs: they put jobs in, within their own
// transaction, and with Main they become a daemon that runs their own handlers.
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	_, err = queued.Enqueue(ctx, tx, queued.NewJob{Kind: "receipt", Key: "order-" + id, Payload: payload})
//	...
//	err = tx.Commit() // the order and its job, or neither
package queued

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"

	"queued/internal/enqueue"
	"queued/job"
)

// What a handler needs, from package job.
type (
	// Job is one claimed job as a handler sees it.
	Job = job.Job
	// Handler runs jobs of one kind.
	Handler = job.Handler
	// HandlerFunc is a function as a Handler.
	HandlerFunc = job.HandlerFunc
)

// What a producer needs.
type (
	// NewJob is a job to be enqueued. Only Kind must be set.
	NewJob = job.New
	// FieldError names a field of a NewJob, the value it has and the rule it breaks.
	FieldError = job.FieldError
	// DB is a *sql.Tx, *sql.DB or *sql.Conn.
	DB = enqueue.DB
	// Dialect is the SQL of a producer's database.
	Dialect = enqueue.Dialect
)

// The dialects.
const (
	MySQL  = enqueue.MySQL // and MariaDB
	SQLite = enqueue.SQLite
)

// Permanent marks err as one that no retry can mend: the job becomes a dead
// letter at once. Permanent(nil) is nil.
func Permanent(err error) error { return job.Permanent(err) }

// RetryAfter makes a failed attempt that is tried again after d instead of the
// kind's delay. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return job.RetryAfter(d, err) }

// Snooze puts the job back for d without counting the attempt.
func Snooze(d time.Duration) error { return job.Snooze(d) }

// Result is the fate of a job that was enqueued.
type Result struct {
	// ID is the new job's. For a job that is not new it is that of the row that
	// holds the key, or 0 if the database user may not read it.
	ID int64
	// New is false when a job with this key is in the table already, waiting,
	// running, done or cancelled. That is success: the work is or was queued.
	New bool
}

// defaultProducer writes where `queued migrate up` puts the tables unless told otherwise.
var defaultProducer = Producer{Schema: "queued"}

// Enqueue puts a job into table queued.jobs on the MySQL or MariaDB server of db. See
// Producer.Enqueue.
func Enqueue(ctx context.Context, db DB, j NewJob) (Result, error) {
	return defaultProducer.Enqueue(ctx, db, j)
}

// EnqueueMany puts jobs into table queued.jobs on the MySQL or MariaDB server of db. See
// Producer.EnqueueMany.
func EnqueueMany(ctx context.Context, db DB, jobs []NewJob) ([]Result, error) {
	return defaultProducer.EnqueueMany(ctx, db, jobs)
}

// Producer puts jobs in. The zero value is for a table jobs in the schema that the
// connection has selected. A Producer may be used by many goroutines at once.
type Producer struct {
	Dialect    Dialect
	Schema     string // of queued's tables; "" is the connection's own
	Prefix     string // of their names
	MaxPayload int    // in bytes; 0 is job.MaxPayloadBytes
}

// Enqueue puts one job in and says whether it is new. See EnqueueMany.
func (p Producer) Enqueue(ctx context.Context, db DB, j NewJob) (Result, error) {
	results, err := p.EnqueueMany(ctx, db, []NewJob{j})
	if err != nil {
		return Result{}, err
	}
	return results[0], nil
}

// EnqueueMany puts jobs in, in order, and returns the fate of each, in order.
//
// With a *sql.Tx it happens with that transaction or not at all; after an error,
// roll it back: on a deadlock the server has done so already. With a *sql.DB
// all of it is one transaction, which is repeated on deadlocks and lock timeouts.
// With a *sql.Conn each statement of up to 100 jobs is in the transaction that was
// begun there, or stands alone.
//
// A job that breaks a rule is refused before anything is written, with all
// its FieldErrors. After any other error on a *sql.DB it may be unknown whether
// the jobs are in; repeating the call is safe for jobs with a key.
func (p Producer) EnqueueMany(ctx context.Context, db DB, jobs []NewJob) ([]Result, error) {
	var errs []error
	for i := range jobs {
		if err := jobs[i].Validate(p.MaxPayload); err != nil {
			if len(jobs) > 1 {
				err = fmt.Errorf("job %d: %w", i, err)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	results, err := p.insert(ctx, db, jobs)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	out := make([]Result, len(results))
	for i, r := range results {
		out[i] = Result(r)
	}
	return out, nil
}

func (p Producer) insert(ctx context.Context, db DB, jobs []NewJob) ([]enqueue.Result, error) {
	table := enqueue.Table{Dialect: p.Dialect, Name: p.Prefix + "jobs"}
	if p.Schema != "" {
		table.Name = p.Schema + "." + table.Name
	}
	pool, ok := db.(*sql.DB)
	if !ok {
		return table.Insert(ctx, db, jobs)
	}
	const maxTries = 10
	for try := 1; ; try++ {
		var results []enqueue.Result
		var err error
		if len(jobs) == 1 {
			results, err = table.Insert(ctx, pool, jobs) // one statement is a transaction by itself
		} else {
			results, err = inTx(ctx, pool, func(tx *sql.Tx) ([]enqueue.Result, error) { return table.Insert(ctx, tx, jobs) })
		}
		if err == nil || try == maxTries || !isLockConflict(err) {
			return results, err
		}
		// Apart from the others that met in the deadlock.
		wait := time.NewTimer(rand.N(time.Duration(try) * 5 * time.Millisecond))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, err
		}
	}
}

func inTx[T any](ctx context.Context, db *sql.DB, f func(*sql.Tx) (T, error)) (T, error) {
	var zero T
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return zero, fmt.Errorf("begin: %w", err)
	}
	result, err := f(tx)
	if err != nil {
		// Its own error says no more: either the server has rolled back or the
		// connection is gone and takes the transaction with it.
		_ = tx.Rollback()
		return zero, err
	}
	if err := tx.Commit(); err != nil {
		return zero, fmt.Errorf("commit: %w", err)
	}
	return result, nil
}

// isLockConflict says that the transaction is to be repeated: a deadlock or lock
// timeout, after which nothing of it has happened.
func isLockConflict(err error) bool {
	const lockWaitTimeout, deadlock = 1205, 1213
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == lockWaitTimeout || e.Number == deadlock)
}
