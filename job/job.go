// Package job is the domain of queued: what a job is, which states it can be
// in, how a run can end, and what is to be written for each ending. It uses the
// standard library only and does no I/O, so every rule in it can be tested
// without a server.
package job

import (
	"context"
	"strconv"
	"time"
)

// State is where a job stands. A job is in exactly one state at any time.
//
//	ready --claim--> running --finish--> done
//	  ^                 |  |
//	  |                 |  `---------> dead (a row of dead_jobs, no longer in jobs)
//	  `--retry/release--'
//	ready|running --cancel--> cancelled
type State string

// The states. Ready, Running, Done and Cancelled are values of jobs.status;
// Dead means that the row has moved to dead_jobs.
const (
	Ready     State = "ready"
	Running   State = "running"
	Done      State = "done"
	Cancelled State = "cancelled"
	Dead      State = "dead"
)

// Limits on what a producer may write. A row beyond them ends in the dead
// letters with a reason; the command line and package queued refuse it.
const (
	MaxNameBytes    = 64                       // queue and kind
	MaxKeyBytes     = 191                      // idempotency key; an index of MySQL 5.6 ends there
	MinPriority     = 0                        // runs last
	MaxPriority     = 9                        // runs first
	MaxMaxAttempts  = 1000                     // attempts a job may ask for
	MaxTimeout      = 7 * 24 * time.Hour       // run time a job may ask for
	MaxDelay        = 5 * 366 * 24 * time.Hour // how far ahead a delay may reach
	MaxPayloadBytes = 1 << 20                  // default of the configured payload limit: 1 MiB
	DefaultQueue    = "default"                // where a job without a queue goes
	EmptyPayload    = "{}"                     // what a handler gets for a job without a payload
)

// Job is one claimed job as a handler sees it. The handler must not change it.
type Job struct {
	ID          int64
	Queue       string
	Kind        string
	Key         string // idempotency key, "" when the producer gave none; see JobKey
	Payload     []byte // JSON
	Priority    int
	Attempt     int           // 1 in the first run; counts runs that were cut off, too
	MaxAttempts int           // 0 asks for the kind's policy
	Timeout     time.Duration // 0 asks for the kind's policy
	AvailableAt time.Time     // when it was due
	CreatedAt   time.Time
	ExpiresAt   time.Time // zero: never; past it the job is not run any more
	ClaimedAt   time.Time // server's clock
	Replays     int       // how often it came back from the dead letters
	Token       int64     // of the claim; every write after the claim carries it

	// Bad says why the row as stored can't be run (a payload that is not JSON, a
	// negative limit); "" when it can. Such a job becomes a dead letter.
	Bad string
}

// JobKey identifies the piece of work over all its attempts and replays: the
// idempotency key, or where there is none the id with the creation time, since
// servers before MySQL 8.0 hand out an id again after a restart.
func (j *Job) JobKey() string { return KeyOf(j.Key, j.ID, j.CreatedAt) }

// KeyOf is JobKey from its parts.
func KeyOf(key string, id int64, created time.Time) string {
	if key != "" {
		return key
	}
	b := append(make([]byte, 0, 48), "job:"...)
	b = append(strconv.AppendInt(b, id, 10), ':')
	return string(strconv.AppendInt(b, created.UnixMilli(), 10)) // Sprintf is a tenth of a no-op job
}

// Handler runs jobs of one kind. Run must return soon after ctx is done; why it
// is done says context.Cause: ErrTimeout, ErrLeaseLost, ErrCancelled or
// ErrShutdown. Runs of one Handler happen at the same time.
//
// A nil error is success; result is kept with the job, cut to a limit. Any
// other error is a failed attempt: the job is retried by its kind's policy
// unless the error is Permanent, or asks for a time by RetryAfter or Snooze.
type Handler interface {
	Run(ctx context.Context, j *Job) (result string, err error)
}

// HandlerFunc is a function as a Handler, for handlers without a result.
type HandlerFunc func(ctx context.Context, j *Job) error

// Run calls f.
func (f HandlerFunc) Run(ctx context.Context, j *Job) (string, error) { return "", f(ctx, j) }
