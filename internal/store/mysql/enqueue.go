package mysql

import (
	"context"
	"errors"
	"fmt"

	"queued/internal/enqueue"
	"queued/internal/store"
	"queued/job"
)

// Enqueue inserts jobs in one transaction; see store.Enqueuer.
func (s *Store) Enqueue(ctx context.Context, jobs []job.New) ([]store.Enqueued, error) {
	for try := 1; ; try++ {
		out, err := s.enqueueOnce(ctx, jobs)
		if err == nil {
			return out, nil
		}
		// A deadlock has undone the whole transaction: all of it is repeated.
		code := codeOf(err)
		if kindOf(code) != store.ErrConflict || try == maxRepeats { //nolint:errorlint // kindOf returns the sentinel itself
			return nil, wrap(ctx, "enqueue", err)
		}
		s.meter.Deadlocks.Add(1)
	}
}

func (s *Store) enqueueOnce(parent context.Context, jobs []job.New) (out []store.Enqueued, err error) {
	ctx, cancel := context.WithTimeout(parent, s.opts.OpTimeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, rollbackError(tx.Rollback()))
		}
	}()
	s.meter.RoundTrips.Add(int64(2 + (len(jobs)+99)/100))
	results, err := enqueue.Table{Dialect: enqueue.MySQL, Name: s.opts.Prefix + "jobs"}.Insert(ctx, tx, jobs)
	if err != nil {
		return nil, err
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	out = make([]store.Enqueued, len(results))
	for i, r := range results {
		out[i] = store.Enqueued{ID: r.ID, New: r.New}
	}
	return out, nil
}

// rollbackError drops the error of a rollback that failed because the
// connection is gone: the transaction went with it.
func rollbackError(err error) error {
	if answered(err) {
		return err
	}
	return nil
}
