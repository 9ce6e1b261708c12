// Package store is the contract between queued and the database that holds its
// jobs. Its interfaces stand in the order of a job's life; each part of the
// daemon takes only the ones it needs. Packages mysql and sqlite implement all of
// them, and package storetest is the one suite that both pass.
//
// Rules that hold for every method:
//
//   - The clock is the store's: due times, leases and ages are compared with the
//     database server's time (SQLite: the host's). Delays go in as durations.
//   - Each call is one transaction: it happened whole or not at all, unless its
//     comment says otherwise.
//   - Every call ends within the store's operation timeout even if the server is
//     silent.
//   - Errors are wrapped with the operation; the sentinels of errors.go say what
//     kind they are. ErrUnavailable means: try again later, nothing is wrong with
//     the request. After an error of a writing call it is unknown whether it took
//     effect; each writing call says how repeating it is safe.
//   - Deadlocks and lock timeouts are repeated inside the store and counted.
//   - All methods may be called by many goroutines at once.
package store

import (
	"context"
	"time"

	"queued/job"
)

// Store is everything a database does for queued.
type Store interface {
	Enqueuer
	Claimer
	Leaser
	Finisher
	Reaper
	Retainer
	Inspector
	Controller
	Registrar
	Migrator

	// Ping asks the server for an answer and whether it takes writes.
	Ping(ctx context.Context) error
	// Describe says what was found out about the server; it connects if need be.
	Describe(ctx context.Context) (Description, error)
	// Meter counts what the store did since it was opened.
	Meter() *Meter
	// Close ends all connections. Calls after it fail.
	Close() error
}

// Description is what a store knows of its server.
type Description struct {
	Driver  string // "mysql" or "sqlite"
	Server  string // "MySQL 9.7.4", "MariaDB 10.11.6", "SQLite 3.50.1"
	Where   string // host and schema or file name, never a secret
	Claim   string // "skip_locked", "cas" or "single_writer"
	Why     string // why that way of claiming
	Payload int    // largest payload in bytes that the server surely takes, 0 for no limit of its own
}

// Enqueuer puts jobs in.
type Enqueuer interface {
	// Enqueue inserts jobs in one transaction and says for each, in order,
	// whether it is new. A job whose key is already there (queued, running, done or
	// cancelled) is not an error: its New is false and its ID the existing job's. The jobs
	// must have passed job.New.Validate. Repeating a call is safe for jobs with a
	// key only.
	Enqueue(ctx context.Context, jobs []job.New) ([]Enqueued, error)
}

// Enqueued is the fate of one job handed to Enqueue.
type Enqueued struct {
	ID  int64
	New bool
}

// Claimer takes due jobs for one process.
type Claimer interface {
	// Claim takes up to Limit due jobs of each wanted queue: highest priority
	// first, then due time, then id. Each is running under the returned token
	// afterwards, its attempt counted, under a lease of req.Owner that ends
	// req.Lease after the call began at the earliest. No job is handed to two callers.
	//
	// Jobs come in the order in which they are to be run. Rows that can't be run
	// as they are stored come with Bad set. With nothing due it returns no
	// jobs and no error, and has locked and written nothing. A row that became
	// visible behind rows already claimed (a slow producer's) is found within
	// a second as a rule, and within 30 when an old snapshot makes the look for it
	// expensive. An error means that no job may be run for this call; jobs it claimed
	// all the same come back when their lease ends.
	Claim(ctx context.Context, req ClaimRequest) (Claimed, error)
}

// ClaimRequest asks for jobs.
type ClaimRequest struct {
	Owner int64 // of the process, see Registrar
	Lease time.Duration
	Wants []Want // at least one, each queue once
}

// Want is how many jobs of a queue are asked for, 1 to MaxClaim.
type Want struct {
	Queue string
	Limit int
}

// MaxClaim is the most jobs one claim takes of a queue.
const MaxClaim = 500

// Claimed is a batch of jobs under one lease.
type Claimed struct {
	Token int64
	Jobs  []*job.Job
	// More says that a queue gave as many jobs as were asked for, so that
	// another claim is worth making at once.
	More bool
}

// Leaser keeps claims alive. Its calls never wait for a free place in the pool
// that the other calls use.
type Leaser interface {
	// Renew lets the leases with these tokens of owner end lease after the call
	// at the earliest, and returns the tokens whose lease does not exist
	// any more. Renewing twice is harmless.
	Renew(ctx context.Context, owner int64, lease time.Duration, tokens []int64) (lost []int64, err error)
	// Verify returns those of the held jobs that are not running under
	// their token any more: somebody changed, cancelled or took them.
	Verify(ctx context.Context, held []Held) (lost []Held, err error)
}

// Held is a job under the token of its claim.
type Held struct {
	ID    int64
	Token int64
}

// Finisher writes how runs ended.
type Finisher interface {
	// Finish writes all of f in one transaction and returns the fate of each
	// write, in order. A write whose row is not running under its token changes
	// nothing and is LeaseLost; the others are Recorded. Repeating the call after
	// an error is safe: what the first one recorded is found to be Recorded. Only
	// the counters may then be raised twice.
	//
	// A dead letter that can't be written as it is (see ErrData) does not lose the
	// job: it goes back to ready and its fate is NotBuried. A result or error text that
	// the server refuses is dropped.
	Finish(ctx context.Context, f Finish) ([]Fate, error)
}

// Finish is a batch of outcomes.
type Finish struct {
	Writes  []job.Write
	Settled []int64 // tokens of leases with no unfinished job left, to be removed
	Counts  []Count // added to the per-minute counters of owner
	Owner   int64
}

// Count is a number of ended runs for the per-minute counters.
type Count struct {
	Queue, Kind string
	Done        int64
	Failed      int64 // failed attempts, those that became dead letters included
	Dead        int64
	RunTime     time.Duration // sum
}

// Fate is what became of a write.
type Fate uint8

// The fates. The zero value is none of them.
const (
	Recorded  Fate = iota + 1
	LeaseLost      // the row is not running under the token: nothing was written
	NotBuried      // the dead letter was refused: the job is ready again, due after UnburiedDelay
)

// UnburiedDelay is the wait of a job whose dead letter could not be written.
const UnburiedDelay = time.Minute

// Reaper finds jobs whose worker is gone.
type Reaper interface {
	// Expired returns up to limit leases that ended grace ago or longer, the
	// oldest first, with their jobs that are still running under them.
	Expired(ctx context.Context, grace time.Duration, limit int) ([]Lease, error)
	// Reap removes the lease if it is still expired by grace and applies the writes, each
	// guarded by its token as in Finish. When the lease was renewed or
	// removed in the meantime it writes nothing and returns job.ErrLeaseLost. Repeating is safe.
	Reap(ctx context.Context, token int64, grace time.Duration, writes []job.Write) ([]Fate, error)
	// Orphans looks at the next span rows behind id after and returns those that
	// are running with no lease that covers them (rows edited by hand), and where to
	// go on; next is 0 at the end of the table. It puts right what producers'
	// statements left out of step.
	Orphans(ctx context.Context, after int64, span int) (orphans []*job.Job, next int64, err error)
}

// Lease is an expired lease.
type Lease struct {
	Token   int64
	Owner   int64
	Expired time.Duration // how long ago
	Jobs    []*job.Job    // without payload
}

// Retainer removes what has been kept long enough.
type Retainer interface {
	// Retain looks at up to batch rows of a table from the cursor on in id order,
	// deletes those older than age by primary key in one short transaction, and says where to go
	// on. Done is true when no older row lies ahead, and the cursor is to start again at 0. Ready
	// and running jobs are never deleted.
	Retain(ctx context.Context, what Retained, age time.Duration, cursor int64, batch int) (Retention, error)
}

// Retained names what Retain cleans.
type Retained string

// What can be retained. Finished are done and cancelled jobs, by the time they ended.
const (
	FinishedJobs Retained = "finished_jobs"
	DeadJobs     Retained = "dead_jobs"
	JobErrors    Retained = "job_errors"
	Counters     Retained = "counters"
	Daemons      Retained = "daemons"
)

// Retention is the result of one step of Retain.
type Retention struct {
	Deleted int
	Next    int64
	Done    bool
}

// Registrar knows which daemons run.
type Registrar interface {
	// Register writes or renews the row of a daemon, alive for ttl from now.
	Register(ctx context.Context, d Daemon, ttl time.Duration) error
	// Unregister notes that it is not alive any more. One that is not there is no error.
	Unregister(ctx context.Context, owner int64) error
	// KnownKinds returns the kinds that daemons have handlers for which are alive or
	// were at some time of the last KnownFor, sorted: a daemon that restarts, or that
	// an outage has kept from renewing its row, still knows its kinds.
	KnownKinds(ctx context.Context) ([]string, error)
	// LiveDaemons lists the daemons that are alive, by start.
	LiveDaemons(ctx context.Context) ([]Daemon, error)
}

// KnownFor is how long after a daemon's end its kinds count as known.
const KnownFor = 10 * time.Minute

// Daemon is one running process.
type Daemon struct {
	Owner   int64     `json:"owner"` // random, unique per process start
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Queues  []string  `json:"queues"`
	Kinds   []string  `json:"kinds"`
	Started time.Time `json:"started"`
}
