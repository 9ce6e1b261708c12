// Package bench measures a store with the daemon's own code, beside two
// references on the same server in the same run: what a simple library does, and
// the least that the server must do. A rate alone says little, machines differ
// and are noisy; the two ratios hold.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"queued/internal/store"
	"queued/internal/worker"
	"queued/job"
)

// Config says what to measure. Everything happens in a queue of its own, which
// is wiped before and after: jobs of other queues are neither run nor changed.
type Config struct {
	Jobs        int // to drain
	Workers     int // of each daemon
	Daemons     int // side by side, in one process, each with connections of its own
	Payload     int // bytes
	DoneRows    int // finished rows that are in the table before
	OldSnapshot bool
	References  bool
	Pickups     int // jobs inserted one at a time into an idle queue, for the latency
	Progress    func(step string)
	// Open makes a store of its own for each daemon.
	Open func() (store.Bencher, error)
}

// Result is what was measured.
type Result struct {
	Server  string `json:"server"`
	Claim   string `json:"claim"`
	Jobs    int    `json:"jobs"`
	Workers int    `json:"workers"`
	Daemons int    `json:"daemons"`

	DoneRows    int  `json:"done_rows"`
	OldSnapshot bool `json:"old_snapshot"`

	EnqueueRate   float64 `json:"enqueue_jobs_per_s"`
	Rate          float64 `json:"jobs_per_s"`
	RoundTrips    float64 `json:"round_trips_per_job"`
	Claims        Spread  `json:"claim_seconds"`
	RSS           int64   `json:"max_rss_bytes"`
	NaiveRate     float64 `json:"naive_jobs_per_s,omitempty"`
	LimitRate     float64 `json:"limit_jobs_per_s,omitempty"`
	Pickup        Spread  `json:"pickup_seconds"`
	EmptyPoll     Spread  `json:"empty_poll_seconds"`
	IdleRequests  float64 `json:"idle_requests_per_s"` // of one daemon
	OverNaive     float64 `json:"times_naive,omitempty"`
	ShareOfLimit  float64 `json:"share_of_limit,omitempty"`
	PickupSamples int     `json:"pickup_samples"`
}

// Spread is two quantiles, in seconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func spread(d []time.Duration) Spread {
	if len(d) == 0 {
		return Spread{}
	}
	slices.Sort(d)
	at := func(q float64) float64 { return d[min(int(q*float64(len(d))), len(d)-1)].Seconds() }
	return Spread{P50: at(0.5), P99: at(0.99)}
}

const (
	kind     = "queued-bench"
	idleFor  = 5 * time.Second // how long an idle daemon is watched
	maxNaive = 5000            // the naive loop is slow, and its rate does not change with the number
)

// Run measures.
func Run(ctx context.Context, cfg Config) (res Result, err error) {
	b := &bench{cfg: cfg, queue: fmt.Sprintf("queued-bench-%08x", rand.Uint32())}
	defer func() {
		for _, s := range b.stores {
			err = errors.Join(err, s.Close())
		}
	}()
	for range cfg.Daemons {
		s, err := cfg.Open()
		if err != nil {
			return res, err
		}
		b.stores = append(b.stores, s)
	}
	s := b.stores[0]
	d, err := s.Describe(ctx)
	if err != nil {
		return res, err
	}
	res = Result{Server: d.Server, Claim: d.Claim, Jobs: cfg.Jobs, Workers: cfg.Workers, Daemons: cfg.Daemons, DoneRows: cfg.DoneRows, OldSnapshot: cfg.OldSnapshot}
	defer func() {
		cfg.Progress("removing the benchmark's rows")
		wipe := context.WithoutCancel(ctx)
		err = errors.Join(err, s.Wipe(wipe, b.queue), s.Wipe(wipe, b.queue+"-done"))
	}()
	if cfg.References {
		if res.NaiveRate, err = b.naive(ctx, s); err != nil {
			return res, err
		}
	}
	if cfg.DoneRows > 0 {
		cfg.Progress(fmt.Sprintf("inserting %d finished rows", cfg.DoneRows))
		if err := s.FillDone(ctx, b.queue+"-done", cfg.DoneRows); err != nil {
			return res, err
		}
	}
	if cfg.OldSnapshot {
		holder, err := cfg.Open()
		if err != nil {
			return res, err
		}
		defer func() { err = errors.Join(err, holder.Close()) }()
		release, err := holder.HoldSnapshot(ctx)
		if err != nil {
			return res, err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	if err := b.drain(ctx, &res); err != nil {
		return res, err
	}
	if cfg.References {
		if res.LimitRate, err = b.limit(ctx, s); err != nil {
			return res, err
		}
		res.OverNaive, res.ShareOfLimit = res.Rate/res.NaiveRate, res.Rate/res.LimitRate
	}
	return res, b.idle(ctx, &res)
}

type bench struct {
	cfg    Config
	queue  string
	stores []store.Bencher
}

func (b *bench) enqueue(ctx context.Context, n int) error {
	payload := json.RawMessage(`{"pad":"` + strings.Repeat("x", max(b.cfg.Payload-10, 0)) + `"}`)
	for n > 0 {
		jobs := make([]job.New, min(n, 1000))
		for i := range jobs {
			jobs[i] = job.New{Kind: kind, Queue: b.queue, Payload: payload}
		}
		if _, err := b.stores[0].Enqueue(ctx, jobs); err != nil {
			return err
		}
		n -= len(jobs)
	}
	return nil
}

// naive runs the simple library's loop with as many workers as the daemon has.
func (b *bench) naive(ctx context.Context, s store.Bencher) (rate float64, err error) {
	n := min(b.cfg.Jobs, maxNaive)
	b.cfg.Progress(fmt.Sprintf("naive loop: %d jobs, each claimed and finished by itself", n))
	if err := b.enqueue(ctx, n); err != nil {
		return 0, err
	}
	var done atomic.Int64
	errs := make([]error, b.cfg.Workers)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range b.cfg.Workers {
		wg.Go(func() {
			for {
				ok, err := s.NaiveStep(ctx, b.queue)
				if err != nil || !ok {
					errs[i] = err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	rate = float64(done.Load()) / time.Since(began).Seconds()
	return rate, errors.Join(append(errs, s.Wipe(ctx, b.queue))...)
}

// limit updates the rows of the drained jobs twice, by primary key.
func (b *bench) limit(ctx context.Context, s store.Bencher) (rate float64, err error) {
	const perStatement, connections = 500, 2
	b.cfg.Progress("limit: the same rows updated twice by primary key, 500 a statement")
	ids, err := s.JobIDs(ctx, b.queue)
	if err != nil {
		return 0, err
	}
	chunks := slices.Collect(slices.Chunk(ids, perStatement))
	errs := make([]error, connections)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for k := i; k < len(chunks); k += connections {
				for range 2 {
					if errs[i] == nil {
						errs[i] = s.Touch(ctx, chunks[k])
					}
				}
			}
		})
	}
	wg.Wait()
	return float64(len(ids)) / time.Since(began).Seconds(), errors.Join(errs...)
}

// drain measures the daemons' rate over a backlog.
func (b *bench) drain(ctx context.Context, res *Result) error {
	b.cfg.Progress(fmt.Sprintf("enqueueing %d jobs", b.cfg.Jobs))
	began := time.Now()
	if err := b.enqueue(ctx, b.cfg.Jobs); err != nil {
		return err
	}
	res.EnqueueRate = float64(b.cfg.Jobs) / time.Since(began).Seconds()
	b.cfg.Progress(fmt.Sprintf("draining them with %d daemon(s) of %d workers", b.cfg.Daemons, b.cfg.Workers))
	var trips int64
	for _, s := range b.stores {
		trips -= s.Meter().RoundTrips.Load()
	}
	m := &recorder{}
	stopRSS := m.watchRSS()
	reasons := make([]worker.Reason, len(b.stores))
	pools := make([]*worker.Pool, len(b.stores))
	for i, s := range b.stores {
		p, err := b.pool(s, m, noop, true)
		if err != nil {
			return err
		}
		pools[i] = p
	}
	began = time.Now()
	var wg sync.WaitGroup
	for i, p := range pools {
		wg.Go(func() { reasons[i] = p.Run(ctx) })
	}
	wg.Wait()
	took := time.Since(began)
	res.RSS = stopRSS()
	if err := ctx.Err(); err != nil {
		return err
	}
	if got := m.done.Load(); got != int64(b.cfg.Jobs) {
		return fmt.Errorf("drained %d of %d jobs", got, b.cfg.Jobs)
	}
	for _, s := range b.stores {
		trips += s.Meter().RoundTrips.Load()
	}
	res.Rate = float64(b.cfg.Jobs) / took.Seconds()
	res.RoundTrips = float64(trips) / float64(b.cfg.Jobs)
	res.Claims = spread(m.claims)
	return nil
}

// idle measures what an idle daemon costs and how soon it starts a job that
// another connection inserts.
func (b *bench) idle(ctx context.Context, res *Result) error {
	producer, err := b.cfg.Open()
	if err != nil {
		return err
	}
	defer producer.Close() //nolint:errcheck // a pool of connections, nothing is lost
	s, m := b.stores[0], &recorder{}
	started := make(chan time.Time, 1)
	p, err := b.pool(s, m, job.HandlerFunc(func(context.Context, *job.Job) error {
		started <- time.Now()
		return nil
	}), false)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	defer wg.Wait()
	defer stop()

	b.cfg.Progress(fmt.Sprintf("watching an idle daemon for %s", idleFor))
	if err := sleep(ctx, idleFor/5); err != nil { // the rest of the drain settles
		return err
	}
	m.reset()
	trips, began := s.Meter().RoundTrips.Load(), time.Now()
	if err := sleep(ctx, idleFor); err != nil {
		return err
	}
	res.IdleRequests = float64(s.Meter().RoundTrips.Load()-trips) / time.Since(began).Seconds()

	b.cfg.Progress(fmt.Sprintf("inserting %d jobs into the idle queue, one at a time", b.cfg.Pickups))
	var waits []time.Duration
	for range b.cfg.Pickups {
		// At no fixed distance, so that the inserts don't fall in step with the polls.
		if err := sleep(ctx, 20*time.Millisecond+rand.N(100*time.Millisecond)); err != nil {
			return err
		}
		if _, err := producer.Enqueue(ctx, []job.New{{Kind: kind, Queue: b.queue}}); err != nil {
			return err
		}
		committed := time.Now()
		select {
		case at := <-started:
			waits = append(waits, max(at.Sub(committed), 0))
		case <-time.After(10 * time.Second):
			return errors.New("a job that was inserted into the idle queue has not been started for 10 s")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	res.Pickup, res.PickupSamples = spread(waits), len(waits)
	m.mu.Lock()
	defer m.mu.Unlock()
	res.EmptyPoll = spread(m.empty)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *bench) pool(s store.Store, m *recorder, h job.Handler, drain bool) (*worker.Pool, error) {
	return worker.New(worker.Config{
		Lanes:    []worker.Lane{{Queue: b.queue, Workers: b.cfg.Workers}},
		Handlers: registry{h},
		Owner:    rand.Int64N(1<<62) + 1,
		Drain:    drain,
		Metrics:  m,
	}, s)
}

var noop = job.HandlerFunc(func(context.Context, *job.Job) error { return nil })

type registry struct{ h job.Handler }

func (r registry) Lookup(k string) (job.Handler, job.Policy, bool) {
	return r.h, job.Policy{MaxAttempts: 3, Timeout: time.Minute, Backoff: job.Backoff{Base: time.Second, Cap: time.Minute}}, k == kind
}
func (r registry) Kinds() []string { return []string{kind} }

// recorder is the pools' worker.Metrics.
type recorder struct {
	worker.NopMetrics
	done   atomic.Int64
	mu     sync.Mutex
	claims []time.Duration
	empty  []time.Duration
}

func (m *recorder) Kind(string, string) worker.Recorder { return m }

func (m *recorder) Ended(e worker.Ending) {
	if e.Outcome == worker.Done {
		m.done.Add(1)
	}
}

func (m *recorder) Claimed(jobs int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if jobs > 0 {
		m.claims = append(m.claims, took)
	} else {
		m.empty = append(m.empty, took)
	}
}

func (m *recorder) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims, m.empty = nil, nil
}

// watchRSS samples the resident memory of this process and returns the most
// that it saw, 0 where the system does not tell.
func (m *recorder) watchRSS() (stop func() int64) {
	quit := make(chan struct{})
	var most int64
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, rss())
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	})
	return func() int64 {
		close(quit)
		wg.Wait()
		return most
	}
}

func rss() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
