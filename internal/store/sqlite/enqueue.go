package sqlite

import (
	"context"

	"queued/internal/enqueue"
	"queued/internal/store"
	"queued/job"
)

// Enqueue inserts jobs in one transaction; see store.Enqueuer.
func (s *Store) Enqueue(ctx context.Context, jobs []job.New) (out []store.Enqueued, err error) {
	table := enqueue.Table{Dialect: enqueue.SQLite, Name: "jobs", Now: s.opts.Now}
	err = s.write(ctx, "enqueue", s.db, func(t *tx) error {
		results, err := table.Insert(t.ctx, t.Conn, jobs)
		out = make([]store.Enqueued, len(results))
		for i, r := range results {
			out[i] = store.Enqueued{ID: r.ID, New: r.New}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
