package store

import "context"

// Bencher is what `queued bench` needs of a store besides Store: work on the
// same tables and connections by which a rate can be judged.
type Bencher interface {
	Store
	// NaiveStep takes one due job of the queue and marks it done, with the statements that
	// simple queue libraries send: one transaction to claim, one statement
	// to finish, nothing batched. It returns false when no job is due.
	NaiveStep(ctx context.Context, queue string) (bool, error)
	// JobIDs lists the ids of a queue's rows in order.
	JobIDs(ctx context.Context, queue string) ([]int64, error)
	// Touch changes one unindexed column of the rows with these ids, in one
	// statement by primary key: the least that any queue must do for a step of a job.
	Touch(ctx context.Context, ids []int64) error
	// FillDone inserts n finished jobs.
	FillDone(ctx context.Context, queue string, n int) error
	// HoldSnapshot opens a consistent snapshot, as a backup does, and keeps it until release.
	HoldSnapshot(ctx context.Context) (release func() error, err error)
	// Wipe deletes the queue's rows, in batches.
	Wipe(ctx context.Context, queue string) error
}
