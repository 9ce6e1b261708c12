package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"queued/internal/store"
	"queued/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mem is a store in memory, for tests of loops and timers. It keeps the contract
// of package store that the pool relies on, with the clock of the synctest bubble.
type mem struct {
	mu     sync.Mutex
	rows   map[int64]*row
	leases map[int64]*memLease
	lastID int64
	token  int64
	known  []string
	counts map[string]store.Count

	// What the test wants to happen; called with mu not held.
	onClaim  func(n int) error // before the n-th claim
	onRenew  func(n int) error
	onVerify func(n int) error
	onFinish func(n int, f store.Finish) error // before the effect
	onWrote  func(n int) error                 // after it

	claims, renews, verifies, finishes int
	claimed                            []int // size of each claim that gave something
	finished                           []memFinish
}

type row struct {
	job.Job
	state  job.State
	due    time.Time
	write  job.Write // the last one
	writes int
	errors []string
}

type memLease struct {
	owner int64
	until time.Time
}

type memFinish struct {
	at     time.Time
	writes int
}

func newMem() *mem {
	return &mem{rows: map[int64]*row{}, leases: map[int64]*memLease{}, counts: map[string]store.Count{}}
}

// add puts n jobs in, due now.
func (m *mem) add(n int, kind string) (ids []int64) {
	for range n {
		ids = append(ids, m.put(job.Job{Kind: kind}))
	}
	return ids
}

func (m *mem) put(j job.Job) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastID++
	j.ID = m.lastID
	if j.Queue == "" {
		j.Queue = "q"
	}
	now := time.Now()
	if j.CreatedAt.IsZero() {
		j.CreatedAt = now
	}
	if j.AvailableAt.IsZero() {
		j.AvailableAt = now
	}
	j.Payload = []byte("{}")
	m.rows[j.ID] = &row{Job: j, state: job.Ready, due: j.AvailableAt}
	return j.ID
}

func (m *mem) Claim(ctx context.Context, req store.ClaimRequest) (store.Claimed, error) {
	m.mu.Lock()
	m.claims++
	n := m.claims
	m.mu.Unlock()
	if m.onClaim != nil {
		if err := m.onClaim(n); err != nil {
			return store.Claimed{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return store.Claimed{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.token++
	got := store.Claimed{Token: m.token}
	for _, w := range req.Wants {
		if w.Limit < 1 || w.Limit > store.MaxClaim {
			panic(fmt.Sprintf("claim of %d jobs", w.Limit))
		}
		n := 0
		for id := int64(1); id <= m.lastID && n < w.Limit; id++ {
			r := m.rows[id]
			if r.Queue != w.Queue || r.state != job.Ready || r.due.After(now) {
				continue
			}
			n++
			r.state, r.Token, r.ClaimedAt = job.Running, m.token, now
			r.Attempt++
			j := r.Job
			got.Jobs = append(got.Jobs, &j)
		}
		got.More = got.More || n == w.Limit
	}
	if len(got.Jobs) > 0 {
		m.leases[m.token] = &memLease{owner: req.Owner, until: now.Add(req.Lease)}
		m.claimed = append(m.claimed, len(got.Jobs))
	}
	return got, nil
}

func (m *mem) Renew(_ context.Context, owner int64, lease time.Duration, tokens []int64) (lost []int64, err error) {
	m.mu.Lock()
	m.renews++
	n := m.renews
	m.mu.Unlock()
	if m.onRenew != nil {
		if err := m.onRenew(n); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range tokens {
		if l := m.leases[t]; l != nil && l.owner == owner {
			l.until = time.Now().Add(lease)
		} else {
			lost = append(lost, t)
		}
	}
	return lost, nil
}

func (m *mem) Verify(_ context.Context, held []store.Held) (lost []store.Held, err error) {
	m.mu.Lock()
	m.verifies++
	n := m.verifies
	m.mu.Unlock()
	if m.onVerify != nil {
		if err := m.onVerify(n); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range held {
		if r := m.rows[h.ID]; r.state != job.Running || r.Token != h.Token {
			lost = append(lost, h)
		}
	}
	return lost, nil
}

func (m *mem) Finish(_ context.Context, f store.Finish) ([]store.Fate, error) {
	m.mu.Lock()
	m.finishes++
	n := m.finishes
	m.mu.Unlock()
	if m.onFinish != nil {
		if err := m.onFinish(n, f); err != nil {
			return nil, err
		}
	}
	fates := m.apply(f)
	if m.onWrote != nil {
		if err := m.onWrote(n); err != nil {
			return nil, err
		}
	}
	return fates, nil
}

func (m *mem) apply(f store.Finish) []store.Fate {
	m.mu.Lock()
	defer m.mu.Unlock()
	fates := make([]store.Fate, len(f.Writes))
	for i, w := range f.Writes {
		r := m.rows[w.ID]
		switch {
		case r.state == job.Running && r.Token == w.Token:
			fates[i] = store.Recorded
			r.state, r.write = w.To, w
			r.writes++
			if w.Uncount {
				r.Attempt--
			}
			if !w.KeepDue {
				r.due = time.Now().Add(w.Delay)
			}
			if w.Error != "" {
				r.errors = append(r.errors, w.Error)
			}
		case r.state == w.To && r.write.Token == w.Token:
			fates[i] = store.Recorded
		default:
			fates[i] = store.LeaseLost
		}
	}
	for _, t := range f.Settled {
		for id, r := range m.rows {
			if r.state == job.Running && r.Token == t {
				panic(fmt.Sprintf("lease %d settled while job %d runs under it", t, id))
			}
		}
		delete(m.leases, t)
	}
	for _, c := range f.Counts {
		sum := m.counts[c.Kind]
		sum.Done += c.Done
		sum.Failed += c.Failed
		sum.Dead += c.Dead
		m.counts[c.Kind] = sum
	}
	m.finished = append(m.finished, memFinish{at: time.Now(), writes: len(f.Writes)})
	return fates
}

// reap takes the jobs of ended leases away, as a reaper would.
func (m *mem) reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, l := range m.leases {
		if time.Now().Before(l.until) {
			continue
		}
		delete(m.leases, t)
		for _, r := range m.rows {
			if r.state == job.Running && r.Token == t {
				w := job.DecideLost(&r.Job, testPolicy, job.RandomJitter)
				r.state, r.due, r.write = w.To, time.Now().Add(w.Delay), w
			}
		}
	}
}

func (m *mem) KnownKinds(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known, nil
}

// know sets the kinds that live daemons have handlers for.
func (m *mem) know(kinds ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = kinds
}

// states counts the jobs by state.
func (m *mem) states() map[job.State]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[job.State]int{}
	for _, r := range m.rows {
		n[r.state]++
	}
	return n
}

// held is how many leases there are.
func (m *mem) held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.leases)
}

// get is a copy of a row.
func (m *mem) get(id int64) row {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.rows[id]
}

// change edits a row as somebody outside would.
func (m *mem) change(id int64, f func(*row)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.rows[id])
}

// handlers is a Registry.
type handlers map[string]job.Handler

var testPolicy = job.Policy{MaxAttempts: 3, Timeout: time.Minute, Backoff: job.Backoff{Base: time.Second, Cap: time.Minute}}

func (h handlers) Lookup(kind string) (job.Handler, job.Policy, bool) {
	f, ok := h[kind]
	return f, testPolicy, ok
}

func (h handlers) Kinds() []string { return slices.Sorted(maps.Keys(h)) }

// f makes a handler.
func f(run func(ctx context.Context, j *job.Job) error) job.Handler { return job.HandlerFunc(run) }

// sleeps is a handler that takes d, or less when it is cancelled.
func sleeps(d time.Duration) job.Handler {
	return f(func(ctx context.Context, _ *job.Job) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// causes notes why the runs of a test were cancelled.
type causes struct{ sync.Map }

func (c *causes) note(ctx context.Context, j *job.Job) { c.Store(j.ID, context.Cause(ctx)) }

func (c *causes) of(id int64) error {
	err, _ := c.Load(id)
	if err == nil {
		return nil
	}
	return err.(error)
}

var errBroken = errors.New("it broke")

// testPool is a pool that runs for a test.
type testPool struct {
	*Pool
	stop   context.CancelFunc
	reason chan Reason
	logs   *observer.ObservedLogs
}

// start runs a pool of one lane "q"; opt may change the configuration.
func start(t *testing.T, s Store, h handlers, workers int, opt ...func(*Config)) *testPool {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := Config{Lanes: []Lane{{Queue: "q", Workers: workers}}, Handlers: h, Owner: 7, Logger: zap.New(core)}
	for _, o := range opt {
		o(&cfg)
	}
	p, err := New(cfg, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	tp := &testPool{Pool: p, stop: cancel, reason: make(chan Reason, 1), logs: logs}
	go func() { tp.reason <- p.Run(ctx) }()
	return tp
}

// halt stops the pool and waits for it.
func (p *testPool) halt() Reason {
	p.stop()
	return <-p.reason
}
