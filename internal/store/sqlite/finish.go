package sqlite

import (
	"context"
	"errors"
	"fmt"

	"queued/internal/store"
	"queued/job"
)

// Finish writes outcomes; see store.Finisher.
func (s *Store) Finish(ctx context.Context, f store.Finish) (fates []store.Fate, err error) {
	err = s.write(ctx, "finish", s.db, func(t *tx) error {
		if len(f.Settled) > 0 {
			if _, err := t.exec("DELETE FROM leases WHERE token IN (SELECT value FROM json_each(?))", jsonIDs(f.Settled)); err != nil {
				return err
			}
		}
		var err error
		if fates, err = apply(t, f.Writes, false); err != nil {
			return err
		}
		return count(t, f)
	})
	if err != nil {
		return nil, err
	}
	return fates, nil
}

// count adds to the counters of this minute.
func count(t *tx, f store.Finish) error {
	for _, n := range f.Counts {
		if _, err := t.exec(`INSERT INTO counters (minute_at, owner, queue, kind, done, failed, dead, run_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET done = done + excluded.done, failed = failed + excluded.failed, dead = dead + excluded.dead, run_ms = run_ms + excluded.run_ms`,
			t.now-t.now%60_000, f.Owner, n.Queue, n.Kind, n.Done, n.Failed, n.Dead, n.RunTime.Milliseconds()); err != nil {
			return err
		}
	}
	return nil
}

// guard is what every write after the claim carries: the row is running under the
// token of the claim.
const guard = "id = ?1 AND token = ?2 AND status = 'running'"

const (
	// Most of what there is to write: no result, no error.
	plainSQL = "UPDATE jobs SET status = 'done', finished_at = ?1 WHERE id IN (SELECT value FROM json_each(?2)) AND token = ?3 AND status = 'running'"
	doneSQL  = "UPDATE jobs SET status = 'done', finished_at = ?3, result = ?4 WHERE " + guard
	readySQL = "UPDATE jobs SET status = 'ready', available_at = coalesce(?3, available_at), attempts = attempts - (?4 AND attempts > 0), token = CASE WHEN ?5 THEN 0 ELSE token END WHERE " + guard
	burySQL  = `INSERT INTO dead_jobs (job_id, queue, kind, idempotency_key, job_key, payload, priority, max_attempts,
timeout_ms, available_at, expires_at, created_at, attempts, token, reason, error, died_at, replays)
SELECT id, queue, kind, idempotency_key, ?3, payload, priority, max_attempts,
timeout_ms, available_at, expires_at, created_at, attempts, token, ?4, ?5, ?6, replays FROM jobs WHERE ` + guard
	buriedSQL = "DELETE FROM jobs WHERE " + guard
	// With its attempts used up an unburied job is not run again: after the next claim it is buried once more.
	unburySQL = "UPDATE jobs SET status = 'ready', available_at = ?3, max_attempts = max(min(attempts, ?4), 1) WHERE " + guard
	failedSQL = "INSERT INTO job_errors (job_id, job_key, attempt, error, failed_at) VALUES (?, ?, ?, ?, ?)"
	traceSQL  = `SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND token = ?2 AND status = ?3)
OR ?3 = 'dead' AND EXISTS (SELECT 1 FROM dead_jobs WHERE job_id = ?1 AND token = ?2)`
)

// apply does the writes, each guarded by its token, and tells their fates. A
// statement that SQLite refuses has no effect, and leaves the transaction as it was.
//
// takeAway is the reaper's: rows that become ready lose the token, so that what the
// late worker writes does not look like the repeat of something recorded.
func apply(t *tx, writes []job.Write, takeAway bool) ([]store.Fate, error) {
	fates := make([]store.Fate, len(writes))
	if err := applyPlain(t, writes, fates); err != nil {
		return nil, err
	}
	for i := range writes {
		if fates[i] != 0 {
			continue
		}
		w := &writes[i]
		var err error
		if fates[i], err = applyOne(t, w, takeAway); err != nil {
			return nil, fmt.Errorf("job %d: %w", w.ID, err)
		}
	}
	return fates, nil
}

// applyPlain does the plain successes, a statement per lease. Where that did not
// find every row it leaves all of the lease to applyOne, which sees which are done.
func applyPlain(t *tx, writes []job.Write, fates []store.Fate) error {
	byToken := map[int64][]int64{}
	for i := range writes {
		if w := &writes[i]; w.To == job.Done && w.Result == "" && !w.Failed() {
			byToken[w.Token] = append(byToken[w.Token], w.ID)
		}
	}
	complete := map[int64]bool{}
	for token, ids := range byToken {
		n, err := t.exec(plainSQL, t.now, jsonIDs(ids), token)
		if err != nil {
			return err
		}
		complete[token] = n == int64(len(ids))
	}
	for i := range writes {
		if w := &writes[i]; w.To == job.Done && w.Result == "" && !w.Failed() && complete[w.Token] {
			fates[i] = store.Recorded
		}
	}
	return nil
}

func applyOne(t *tx, w *job.Write, takeAway bool) (store.Fate, error) {
	fate := store.Recorded
	var n int64
	var err error
	switch w.To {
	case job.Done:
		var result any
		if w.Result != "" {
			result = job.Clean(w.Result, job.ResultLimit)
		}
		n, err = t.exec(doneSQL, w.ID, w.Token, t.now, result)
	case job.Ready:
		var due any
		if !w.KeepDue {
			due = t.now + millis(w.Delay)
		}
		n, err = t.exec(readySQL, w.ID, w.Token, due, w.Uncount, takeAway)
	case job.Dead:
		n, err = t.exec(burySQL, w.ID, w.Token, w.JobKey, w.Reason, job.Clean(w.Error, job.ErrorLimit), t.now)
		switch {
		case refused(err):
			fate = store.NotBuried
			n, err = t.exec(unburySQL, w.ID, w.Token, t.now+millis(store.UnburiedDelay), job.MaxMaxAttempts)
		case err == nil && n > 0:
			n, err = t.exec(buriedSQL, w.ID, w.Token)
		}
	case job.Running, job.Cancelled:
		return 0, fmt.Errorf("a run can't end in state %s", w.To)
	default:
		return 0, fmt.Errorf("a run can't end in state %q", w.To)
	}
	if err != nil {
		return 0, err
	}
	if n == 0 {
		// Somebody else's by now, or written by the call that this one repeats: the
		// row keeps the token of its last claim.
		var recorded bool
		if err := t.row(traceSQL, []any{w.ID, w.Token, w.To}, &recorded); err != nil {
			return 0, err
		}
		if recorded {
			return store.Recorded, nil
		}
		return store.LeaseLost, nil
	}
	if w.Failed() {
		if _, err := t.exec(failedSQL, w.ID, w.JobKey, w.Attempt, job.Clean(w.Error, job.ErrorLimit), t.now); err != nil && !refused(err) {
			return 0, err
		}
	}
	return fate, nil
}

// refused says whether SQLite took exception to a value or table, which a repeat
// won't mend.
func refused(err error) bool {
	kind := kindOf(err)
	return errors.Is(kind, store.ErrData) || errors.Is(kind, store.ErrSchema) || errors.Is(kind, store.ErrDuplicate) || errors.Is(kind, store.ErrDenied)
}
