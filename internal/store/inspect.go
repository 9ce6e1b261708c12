package store

import (
	"context"
	"encoding/json"
	"time"

	"queued/job"
)

// Inspector reads for people. Nothing in it takes part in running jobs.
type Inspector interface {
	// Stats counts jobs per queue, each count up to StatsLimit, from indexes only.
	Stats(ctx context.Context) ([]QueueStats, error)
	// ListJobs returns up to Limit rows of jobs without payload, newest first.
	ListJobs(ctx context.Context, f JobFilter) ([]JobRow, error)
	// GetJob returns one row of jobs, or ErrNotFound.
	GetJob(ctx context.Context, id int64) (JobRow, error)
	// ListDead returns up to Limit dead letters without payload, newest first.
	ListDead(ctx context.Context, f DeadFilter) ([]DeadRow, error)
	// GetDead returns one dead letter by its own id, or ErrNotFound.
	GetDead(ctx context.Context, id int64) (DeadRow, error)
	// Errors returns the failed attempts of a job, oldest first, by JobKey.
	Errors(ctx context.Context, jobKey string) ([]ErrorRow, error)
}

// Controller is how people steer.
type Controller interface {
	// RetryJob makes a ready job due now, and a cancelled one ready again with
	// its attempts at 0. ErrNotFound; ErrState for a running or done one.
	RetryJob(ctx context.Context, id int64) error
	// CancelJob ends a ready or running job. A running one's handler is
	// told at the next heartbeat. ErrNotFound; ErrState for one that has ended.
	CancelJob(ctx context.Context, id int64) error
	// ReplayDead puts one dead letter back into jobs: attempts at 0, due now, its
	// replay count raised; the dead row stays, marked with the new job's id.
	// ErrNotFound; ErrState if it was replayed already; ErrDuplicate if a job with
	// its key is in jobs.
	ReplayDead(ctx context.Context, id int64) (jobID int64, err error)
	// DiscardDead deletes one dead letter. ErrNotFound.
	DiscardDead(ctx context.Context, id int64) error
}

// StatsLimit is where Stats stops counting.
const StatsLimit = 100_000

// QueueStats is one queue at a glance. Counts of StatsLimit mean "that many or more".
type QueueStats struct {
	Queue     string        `json:"queue"`
	Due       int64         `json:"due"`
	Scheduled int64         `json:"scheduled"`
	Running   int64         `json:"running"`
	OldestDue time.Duration `json:"oldest_due_ns"` // how long the oldest due job has waited, 0 without one
	Dead      int64         `json:"dead"`          // not replayed
	Done      int64         `json:"done_last_hour"`
	Failed    int64         `json:"failed_last_hour"` // attempts
	Buried    int64         `json:"dead_last_hour"`
}

// JobFilter selects rows of jobs; zero fields don't filter.
type JobFilter struct {
	State  job.State
	Queue  string
	Kind   string
	Key    string
	Before int64 // ids below this one, for the next page
	Limit  int   // 1 to 1000
}

// DeadFilter selects dead letters; zero fields don't filter.
type DeadFilter struct {
	Queue    string
	Kind     string
	Reason   string
	Key      string
	Replayed *bool
	Before   int64
	Limit    int // 1 to 1000
}

// JobRow is a row of jobs.
type JobRow struct {
	ID          int64           `json:"id"`
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Key         string          `json:"key,omitempty"`
	State       job.State       `json:"state"`
	Priority    int             `json:"priority"`
	Attempts    int             `json:"attempts"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	TimeoutMS   int64           `json:"timeout_ms,omitempty"`
	AvailableAt time.Time       `json:"available_at"`
	CreatedAt   time.Time       `json:"created_at"`
	ClaimedAt   *time.Time      `json:"claimed_at,omitempty"`
	FinishedAt  *time.Time      `json:"finished_at,omitempty"`
	ExpiresAt   *time.Time      `json:"expires_at,omitempty"`
	Replays     int             `json:"replays,omitempty"`
	Result      string          `json:"result,omitempty"`
	Payload     json.RawMessage `json:"payload,omitempty"` // GetJob only; a JSON string when the stored text is not JSON
}

// JobKey is job.Job.JobKey of the row.
func (r *JobRow) JobKey() string { return job.KeyOf(r.Key, r.ID, r.CreatedAt) }

// DeadRow is a dead letter.
type DeadRow struct {
	ID            int64           `json:"id"`
	JobID         int64           `json:"job_id"`
	Queue         string          `json:"queue"`
	Kind          string          `json:"kind"`
	Key           string          `json:"key,omitempty"`
	JobKey        string          `json:"job_key"`
	Priority      int             `json:"priority"`
	Attempts      int             `json:"attempts"`
	MaxAttempts   int             `json:"max_attempts,omitempty"`
	TimeoutMS     int64           `json:"timeout_ms,omitempty"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	CreatedAt     time.Time       `json:"created_at"`
	AvailableAt   time.Time       `json:"available_at"`
	DiedAt        time.Time       `json:"died_at"`
	Replays       int             `json:"replays,omitempty"`
	ReplayedAt    *time.Time      `json:"replayed_at,omitempty"`
	ReplayedJobID int64           `json:"replayed_job_id,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"` // GetDead only
}

// ErrorRow is one failed attempt.
type ErrorRow struct {
	JobID    int64     `json:"job_id"`
	Attempt  int       `json:"attempt"`
	Error    string    `json:"error"`
	FailedAt time.Time `json:"failed_at"`
}
