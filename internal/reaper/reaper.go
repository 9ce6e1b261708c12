// Package reaper brings back the jobs of workers that are gone (reap.go) and
// removes what has been kept long enough (retain.go). Every daemon runs one; they
// need not know of each other, since the store guards each of their writes.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
	"queued/job"
)

// Store is the part of a store that the reaper takes.
type Store interface {
	store.Reaper
	store.Finisher
	store.Retainer
}

// Policies knows how often a job of a kind is tried.
type Policies interface {
	Lookup(kind string) (job.Handler, job.Policy, bool)
}

// Config says how the reaper works. Durations that are 0 get the default unless
// it says otherwise.
type Config struct {
	Policies Policies
	Default  job.Policy    // for kinds that Policies does not know
	Owner    int64         // of this process, for the counters
	Lease    time.Duration // of the workers; 30s
	Interval time.Duration // between rounds; a third of Lease
	Grace    time.Duration // how long ago a lease must have ended; 5s

	FinishedAge time.Duration // after which done and cancelled jobs are removed; 0: never
	DeadAge     time.Duration // the same for dead letters and the errors of attempts; 0: never

	Logger  *zap.Logger // nil: no log
	Metrics Metrics     // nil: none
}

func (c *Config) setDefaults() error {
	var errs []error
	for _, d := range []struct {
		field string
		value *time.Duration
		def   time.Duration
	}{
		{"lease", &c.Lease, 30 * time.Second},
		{"interval", &c.Interval, 0},
		{"grace", &c.Grace, 5 * time.Second},
		{"age of finished jobs", &c.FinishedAge, 0},
		{"age of dead letters", &c.DeadAge, 0},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative (got %s)", d.field, *d.value))
		}
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.Interval == 0 {
		c.Interval = c.Lease / 3
	}
	if c.Policies == nil {
		errs = append(errs, errors.New("policies must be set"))
	}
	if c.Default.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("max attempts of the default policy must be at least 1 (got %d)", c.Default.MaxAttempts))
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Metrics == nil {
		c.Metrics = NopMetrics{}
	}
	return errors.Join(errs...)
}

// Outcome says what became of a job whose worker is gone.
type Outcome string

// The outcomes.
const (
	Retried   Outcome = "retried"    // ready again, after its backoff
	Buried    Outcome = "dead"       // that was its last attempt
	NotBuried Outcome = "not_buried" // the same, but the dead letter was refused
	TooLate   Outcome = "too_late"   // somebody else was faster
)

// Outcomes lists all of them.
func Outcomes() []Outcome { return []Outcome{Retried, Buried, NotBuried, TooLate} }

// Metrics is told what the reaper does.
type Metrics interface {
	// Reaped counts jobs. orphan says that no lease covered them.
	Reaped(o Outcome, orphan bool, jobs int)
	// Retained counts rows that were removed.
	Retained(what store.Retained, rows int)
}

// NopMetrics keeps nothing.
type NopMetrics struct{}

// Reaped does nothing.
func (NopMetrics) Reaped(Outcome, bool, int) {}

// Retained does nothing.
func (NopMetrics) Retained(store.Retained, int) {}

// Reaper runs the loops of this package.
type Reaper struct {
	cfg      Config
	store    Store
	suspects map[store.Held]time.Time // running without a lease, by when that was first seen
	swept    int64                    // id up to which the sweep has come

	mu    sync.Mutex
	state State
}

// State is what the reaper has done last. Zero times: not yet.
type State struct {
	Reaped time.Time // end of the last round without an error
	Swept  time.Time // end of the last sweep over the whole table
	// Retained has for each table that is cleaned the time when nothing too old
	// was left in it. One that stays behind has a backlog.
	Retained map[store.Retained]time.Time
}

// New makes a reaper. The error names everything that is wrong with cfg.
func New(cfg Config, s Store) (*Reaper, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("reaper: %w", err)
	}
	return &Reaper{
		cfg: cfg, store: s, suspects: map[store.Held]time.Time{},
		state: State{Retained: map[store.Retained]time.Time{}},
	}, nil
}

// State returns a copy.
func (r *Reaper) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.Retained = maps.Clone(s.Retained)
	return s
}

func (r *Reaper) note(f func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.state)
}

// Run works until ctx ends. No error of the store and no panic ends it.
func (r *Reaper) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.again(ctx, "reaper", r.reapLoop) })
	wg.Go(func() { r.again(ctx, "retention", r.retainLoop) })
	wg.Wait()
}

// again runs a loop, and once more whenever it panics, until ctx ends.
func (r *Reaper) again(ctx context.Context, name string, f func(context.Context)) {
	backoff := loop.Backoff{Min: time.Second, Max: time.Minute}
	for ctx.Err() == nil {
		func() {
			defer func() {
				if v := recover(); v != nil {
					r.cfg.Logger.Error("loop panicked and is started again",
						zap.String("loop", name), zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
				}
			}()
			f(ctx)
		}()
		loop.Sleep(ctx, backoff.Next(), nil)
	}
}

// passing says whether an error is no more than a delay.
func passing(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrSchema)
}
