package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"queued/internal/store"
	"queued/job"
)

// arms are the ranges of priority that are searched one by one, the highest
// first. A search across priorities would walk all jobs that are scheduled for later.
// The first and the last hold rows that can't be run, see job.Check.
var arms = func() []string {
	list := []string{fmt.Sprintf("priority > %d", job.MaxPriority)}
	for p := job.MaxPriority; p >= job.MinPriority; p-- {
		list = append(list, fmt.Sprintf("priority = %d", p))
	}
	return append(list, fmt.Sprintf("priority < %d", job.MinPriority))
}()

const readyOf = "FROM jobs INDEXED BY jobs_poll WHERE queue = ?1 AND status = 'ready' AND "

// anyDueSQL asks whether a queue has a due job.
var anyDueSQL = func() string {
	var b strings.Builder
	for i, arm := range arms {
		if i > 0 {
			b.WriteString(" OR ")
		}
		b.WriteString("EXISTS (SELECT 1 " + readyOf + arm + " AND available_at <= ?2)")
	}
	return "SELECT " + b.String()
}()

func dueSQL(arm string) string {
	return "SELECT " + jobColumns + ", payload " + readyOf + arm + " AND available_at <= ?2 ORDER BY priority DESC, available_at, id LIMIT ?3"
}

// attempts stops where MySQL's column ends.
const (
	attemptsEnd = math.MaxInt32
	takeSQL     = `UPDATE jobs SET status = 'running', token = ?1, attempts = min(attempts + 1, ?2), claimed_at = ?3
WHERE id IN (SELECT value FROM json_each(?4))`
)

// Claim takes due jobs; see store.Claimer.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	if due, err := s.anyDue(ctx, req.Wants); err != nil || !due {
		return store.Claimed{}, err
	}
	var out store.Claimed
	err := s.write(ctx, "claim", s.db, func(t *tx) error {
		out = store.Claimed{Token: store.NewToken()}
		for _, w := range req.Wants {
			n, err := s.findDue(t, w, &out)
			if err != nil {
				return fmt.Errorf("queue %q: %w", w.Queue, err)
			}
			out.More = out.More || n == w.Limit
		}
		if len(out.Jobs) == 0 {
			return nil
		}
		ids := make([]int64, len(out.Jobs))
		for i, j := range out.Jobs {
			ids[i] = j.ID
		}
		if _, err := t.exec("INSERT INTO leases (token, owner, expires_at, job_ids) VALUES (?, ?, ?, ?)",
			out.Token, req.Owner, t.now+millis(req.Lease), store.EncodeIDs(ids)); err != nil {
			return err
		}
		_, err := t.exec(takeSQL, out.Token, attemptsEnd, t.now, jsonIDs(ids))
		return err
	})
	if err != nil || len(out.Jobs) == 0 {
		return store.Claimed{}, err
	}
	slices.SortStableFunc(out.Jobs, func(a, b *job.Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.AvailableAt.Compare(b.AvailableAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// anyDue looks without a lock, so that an empty poll takes none.
func (s *Store) anyDue(ctx context.Context, wants []store.Want) (due bool, err error) {
	err = s.read(ctx, "look for due jobs", s.reads, func(t *tx) error {
		for _, w := range wants {
			if err := t.row(anyDueSQL, []any{w.Queue, t.now}, &due); err != nil || due {
				return err
			}
		}
		return nil
	})
	return due, err
}

// findDue adds up to w.Limit due jobs, as they will be once they are taken, and
// returns how many.
func (s *Store) findDue(t *tx, w store.Want, out *store.Claimed) (found int, err error) {
	for _, arm := range arms {
		if found == w.Limit {
			break
		}
		if err := t.query(dueSQL(arm), []any{w.Queue, t.now, w.Limit - found}, func(rows *sql.Rows) error {
			found++
			j, err := s.scanTaken(rows, out.Token, t.now)
			out.Jobs = append(out.Jobs, j)
			return err
		}); err != nil {
			return found, err
		}
	}
	return found, nil
}

// jsonIDs is a list of ids as one parameter, for json_each.
func jsonIDs(ids []int64) string {
	if ids == nil {
		ids = []int64{}
	}
	b, _ := json.Marshal(ids) // integers always can
	return string(b)
}
