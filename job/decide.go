package job

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reasons for which a job is a dead letter, and failures are counted.
const (
	ReasonPermanent   = "permanent"    // the handler said that no retry helps
	ReasonMaxAttempts = "max_attempts" // failed as often as it may
	ReasonWorkerDied  = "worker_died"  // its last attempt's worker died or lost its lease
	ReasonExpired     = "expired"      // not run before its expires_at
	ReasonUnknownKind = "unknown_kind" // no daemon has a handler for the kind
	ReasonBadRow      = "bad_row"      // the row can't be run as it is
)

// noMessage stands for the text of an error that has none: an empty one would say
// that nothing failed.
const noMessage = "failed without a message"

// Write is what is to be written for a job at the end of a run. The store
// writes it only while the row is running under Token.
type Write struct {
	ID      int64
	Token   int64
	Attempt int
	Queue   string
	Kind    string
	JobKey  string

	To      State         // Done, Ready or Dead
	Delay   time.Duration // Ready: due this long after the write, by the store's clock
	KeepDue bool          // Ready: the due time stays as it is, Delay is ignored
	Uncount bool          // Ready: the attempt is given back
	Error   string        // Ready, Dead: recorded as a row of job_errors unless ""
	Reason  string        // Dead: why, one of the Reason constants
	Result  string        // Done: kept with the job, best effort
}

// Failed says whether the write records a failed attempt.
func (w *Write) Failed() bool { return w.Error != "" }

func (j *Job) write(to State) Write {
	return Write{ID: j.ID, Token: j.Token, Attempt: j.Attempt, Queue: j.Queue, Kind: j.Kind, JobKey: j.JobKey(), To: to}
}

// Release is the write for a job that is handed back unstarted, or that the
// shutdown cut off: ready at its old place, its attempt given back.
func Release(j *Job) Write {
	w := j.write(Ready)
	w.KeepDue, w.Uncount = true, true
	return w
}

// Refuse is the write for a job that is not run at all: a dead letter.
func Refuse(j *Job, reason, msg string) Write {
	w := j.write(Dead)
	if msg == "" {
		msg = noMessage
	}
	w.Reason, w.Error = reason, Clean(msg, ErrorLimit)
	return w
}

// Postpone is the write for a job whose turn has not come: ready after d, its
// attempt given back.
func Postpone(j *Job, d time.Duration) Write {
	w := j.write(Ready)
	w.Delay, w.Uncount = d, true
	return w
}

// Decide says what to write after a run of j that ended with err, its context
// having ended with cause (nil if it had not). ok is false when nothing may be
// written, because the lease was lost or the job was changed from outside.
//
// A run that returned nil is done, whatever its context says: the effect has
// happened, and repeating it would be the greater harm. The token guards the
// write all the same.
func Decide(j *Job, result string, err, cause error, p Policy, rnd Rand) (w Write, ok bool) {
	if errors.Is(cause, ErrLeaseLost) || errors.Is(cause, ErrCancelled) {
		return Write{}, false
	}
	if err == nil {
		w := j.write(Done)
		w.Result = Clean(result, ResultLimit)
		return w, true
	}
	var oc *outcomeError
	errors.As(err, &oc)
	switch {
	case oc != nil && oc.snooze:
		return Postpone(j, oc.after), true
	case oc != nil && oc.permanent:
		return Refuse(j, ReasonPermanent, err.Error()), true
	case errors.Is(cause, ErrShutdown):
		// The stop cut the run off; the job is not to blame.
		return Release(j), true
	case errors.Is(cause, ErrTimeout) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout)):
		err = fmt.Errorf("timed out after %s", j.timeout(p))
	}
	if j.Attempt >= j.maxAttempts(p) {
		return Refuse(j, ReasonMaxAttempts, err.Error()), true
	}
	w = j.write(Ready)
	w.Error = Clean(err.Error(), ErrorLimit)
	if w.Error == "" {
		w.Error = noMessage
	}
	if oc != nil && oc.hasAfter {
		w.Delay = oc.after
	} else {
		w.Delay = p.Backoff.Delay(j.Attempt, rnd)
	}
	return w, true
}

// DecideLost says what to write for a job whose worker died or lost its lease:
// back with backoff, or a dead letter when that was its last attempt.
func DecideLost(j *Job, p Policy, rnd Rand) Write {
	msg := fmt.Sprintf("attempt %d did not end: its worker died or lost its lease", j.Attempt)
	if j.Attempt >= j.maxAttempts(p) {
		return Refuse(j, ReasonWorkerDied, msg)
	}
	w := j.write(Ready)
	w.Error, w.Delay = msg, p.Backoff.Delay(j.Attempt, rnd)
	return w
}

// RunTimeout is how long one run of j may take under p.
func (j *Job) RunTimeout(p Policy) time.Duration { return j.timeout(p) }

// AttemptLimit is how often j may be run under p.
func (j *Job) AttemptLimit(p Policy) int { return j.maxAttempts(p) }

func (j *Job) timeout(p Policy) time.Duration {
	if j.Timeout > 0 {
		return j.Timeout
	}
	return p.Timeout
}

func (j *Job) maxAttempts(p Policy) int {
	if j.MaxAttempts > 0 {
		return j.MaxAttempts
	}
	return p.MaxAttempts
}
