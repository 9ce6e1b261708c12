package job

import (
	"errors"
	"fmt"
	"time"
)

// Why a run's context ended, as its context.Cause.
var (
	// ErrTimeout: the run took longer than its timeout. A failed attempt.
	ErrTimeout = errors.New("timeout exceeded")
	// ErrLeaseLost: another worker may own the job by now, or the lease can't be
	// proven. Whatever the run returns, nothing is written for it.
	ErrLeaseLost = errors.New("lease lost")
	// ErrCancelled: a person cancelled or changed the job while it ran. Nothing is
	// written for the run.
	ErrCancelled = errors.New("job cancelled or changed from outside")
	// ErrShutdown: the daemon stops and its grace time is over. The job goes back
	// with its attempt.
	ErrShutdown = errors.New("daemon is shutting down")
)

// Permanent marks err as one that no retry can mend: the job becomes a dead
// letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, permanent: true}
}

// RetryAfter makes a failed attempt that is tried again after d (>= 0, counted
// from the finish by the store's clock) instead of the policy's delay.
// The attempt counts. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &outcomeError{err: err, after: max(d, 0), hasAfter: true}
}

// Snooze puts the job back for d (>= 0) without counting the attempt: it was not
// the job's turn. No error is recorded.
func Snooze(d time.Duration) error {
	return &outcomeError{err: fmt.Errorf("snoozed for %s", d), after: max(d, 0), hasAfter: true, snooze: true}
}

type outcomeError struct {
	err       error
	after     time.Duration
	hasAfter  bool
	permanent bool
	snooze    bool
}

func (e *outcomeError) Error() string { return e.err.Error() }
func (e *outcomeError) Unwrap() error { return e.err }
