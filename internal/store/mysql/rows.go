package mysql

import (
	"encoding/json"

	"queued/internal/store"
	"queued/job"
)

// jobColumns is what scanJob reads; payload may follow.
const jobColumns = "id, queue, kind, idempotency_key, priority, attempts, max_attempts, timeout_ms, available_at, created_at, expires_at, claimed_at, replays, token"

func (s *Store) scanJob(r row, payload bool) *job.Job {
	j := &job.Job{
		ID: r.int(0), Queue: r.str(1), Kind: r.str(2), Key: r.str(3), Priority: int(r.int(4)), Attempt: int(r.int(5)),
		AvailableAt: r.time(8), CreatedAt: r.time(9), ExpiresAt: r.time(10), ClaimedAt: r.time(11), Replays: int(r.int(12)), Token: r.int(13),
	}
	if !payload {
		j.MaxAttempts, j.Timeout = job.Limits(r.int(6), r.int(7))
		return j
	}
	if j.Payload = r.bytes(14); j.Payload == nil {
		j.Payload = []byte(job.EmptyPayload)
	}
	j.Bad = job.Check(j, r.int(6), r.int(7), s.opts.PayloadLimit)
	j.MaxAttempts, j.Timeout = job.Limits(r.int(6), r.int(7))
	return j
}

const jobRowColumns = "id, queue, kind, idempotency_key, status, priority, attempts, max_attempts, timeout_ms, available_at, created_at, claimed_at, finished_at, expires_at, replays"

func scanJobRow(r row) store.JobRow {
	return store.JobRow{
		ID: r.int(0), Queue: r.str(1), Kind: r.str(2), Key: r.str(3), State: job.State(r.str(4)), Priority: int(r.int(5)),
		Attempts: int(r.int(6)), MaxAttempts: int(r.int(7)), TimeoutMS: r.int(8), AvailableAt: r.time(9), CreatedAt: r.time(10),
		ClaimedAt: r.timePtr(11), FinishedAt: r.timePtr(12), ExpiresAt: r.timePtr(13), Replays: int(r.int(14)),
	}
}

const deadRowColumns = "id, job_id, queue, kind, idempotency_key, job_key, priority, attempts, max_attempts, timeout_ms, reason, error, created_at, available_at, died_at, replays, replayed_at, replayed_job_id"

func scanDeadRow(r row) store.DeadRow {
	return store.DeadRow{
		ID: r.int(0), JobID: r.int(1), Queue: r.str(2), Kind: r.str(3), Key: r.str(4), JobKey: r.str(5), Priority: int(r.int(6)),
		Attempts: int(r.int(7)), MaxAttempts: int(r.int(8)), TimeoutMS: r.int(9), Reason: r.str(10), Error: r.str(11),
		CreatedAt: r.time(12), AvailableAt: r.time(13), DiedAt: r.time(14), Replays: int(r.int(15)), ReplayedAt: r.timePtr(16), ReplayedJobID: r.int(17),
	}
}

// payloadJSON is a stored payload as JSON: text that is not becomes a JSON string.
func payloadJSON(b []byte) json.RawMessage {
	if b == nil || json.Valid(b) {
		return b
	}
	quoted, _ := json.Marshal(string(b)) // a string always can
	return quoted
}
