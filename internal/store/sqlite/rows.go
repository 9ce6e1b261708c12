package sqlite

import (
	"database/sql"
	"encoding/json"
	"time"

	"queued/internal/store"
	"queued/job"
)

const jobColumns = "id, queue, kind, idempotency_key, priority, attempts, max_attempts, timeout_ms, available_at, created_at, expires_at, claimed_at, replays, token"

// scanJob reads jobColumns.
func scanJob(rows *sql.Rows) (*job.Job, error) {
	j, _, _, err := scanJobAnd(rows)
	return j, err
}

// scanTaken reads jobColumns and payload of a ready row, and returns the job that
// it becomes when it is taken under token.
func (s *Store) scanTaken(rows *sql.Rows, token, now int64) (*job.Job, error) {
	var payload []byte
	j, maxAttempts, timeoutMS, err := scanJobAnd(rows, &payload)
	if err != nil {
		return nil, err
	}
	j.Attempt = min(j.Attempt+1, attemptsEnd)
	j.Token, j.ClaimedAt = token, atMillis(now)
	if j.Payload = payload; payload == nil {
		j.Payload = []byte(job.EmptyPayload)
	}
	j.Bad = job.Check(j, maxAttempts, timeoutMS, s.opts.PayloadLimit)
	return j, nil
}

// scanJobAnd reads jobColumns, and what follows them into more. It also returns
// the raw limits, for job.Check.
func scanJobAnd(rows *sql.Rows, more ...any) (j *job.Job, maxAttempts, timeoutMS int64, err error) {
	j = &job.Job{}
	var key sql.NullString
	var attempts, timeout, expires, claimed sql.NullInt64
	var available, created int64
	err = rows.Scan(append([]any{
		&j.ID, &j.Queue, &j.Kind, &key, &j.Priority, &j.Attempt, &attempts, &timeout,
		&available, &created, &expires, &claimed, &j.Replays, &j.Token,
	}, more...)...)
	j.Key = key.String
	j.AvailableAt, j.CreatedAt, j.ExpiresAt, j.ClaimedAt = atMillis(available), atMillis(created), atNull(expires), atNull(claimed)
	j.MaxAttempts, j.Timeout = job.Limits(attempts.Int64, timeout.Int64)
	return j, attempts.Int64, timeout.Int64, err
}

const jobRowColumns = "id, queue, kind, idempotency_key, status, priority, attempts, max_attempts, timeout_ms, available_at, created_at, claimed_at, finished_at, expires_at, replays"

// scanJobRow reads jobRowColumns, and what follows them into more.
func scanJobRow(rows *sql.Rows, more ...any) (r store.JobRow, err error) {
	var key sql.NullString
	var maxAttempts, timeoutMS, claimed, finished, expires sql.NullInt64
	var available, created int64
	err = rows.Scan(append([]any{
		&r.ID, &r.Queue, &r.Kind, &key, &r.State, &r.Priority, &r.Attempts, &maxAttempts, &timeoutMS,
		&available, &created, &claimed, &finished, &expires, &r.Replays,
	}, more...)...)
	r.Key, r.MaxAttempts, r.TimeoutMS = key.String, int(maxAttempts.Int64), timeoutMS.Int64
	r.AvailableAt, r.CreatedAt = atMillis(available), atMillis(created)
	r.ClaimedAt, r.FinishedAt, r.ExpiresAt = ptrNull(claimed), ptrNull(finished), ptrNull(expires)
	return r, err
}

const deadRowColumns = "id, job_id, queue, kind, idempotency_key, job_key, priority, attempts, max_attempts, timeout_ms, reason, error, created_at, available_at, died_at, replays, replayed_at, replayed_job_id"

// scanDeadRow reads deadRowColumns, and what follows them into more.
func scanDeadRow(rows *sql.Rows, more ...any) (r store.DeadRow, err error) {
	var key sql.NullString
	var maxAttempts, timeoutMS, created, available, replayed, replayedJob sql.NullInt64
	var died int64
	err = rows.Scan(append([]any{
		&r.ID, &r.JobID, &r.Queue, &r.Kind, &key, &r.JobKey, &r.Priority, &r.Attempts, &maxAttempts, &timeoutMS,
		&r.Reason, &r.Error, &created, &available, &died, &r.Replays, &replayed, &replayedJob,
	}, more...)...)
	r.Key, r.MaxAttempts, r.TimeoutMS, r.ReplayedJobID = key.String, int(maxAttempts.Int64), timeoutMS.Int64, replayedJob.Int64
	r.CreatedAt, r.AvailableAt, r.DiedAt, r.ReplayedAt = atNull(created), atNull(available), atMillis(died), ptrNull(replayed)
	return r, err
}

func atMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func atNull(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return atMillis(ms.Int64)
}

func ptrNull(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := atMillis(ms.Int64)
	return &t
}

// payloadJSON is a stored payload as JSON: text that is not becomes a JSON string.
func payloadJSON(b []byte) json.RawMessage {
	if b == nil || json.Valid(b) {
		return b
	}
	quoted, _ := json.Marshal(string(b)) // a string always can
	return quoted
}
