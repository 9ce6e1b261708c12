// Package daemon puts the parts together: it opens the store, runs worker and
// reaper over it, serves metrics and health, and takes everything down in order.
// Only this package knows which drivers there are.
package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"queued/internal/admin"
	"queued/internal/config"
	"queued/internal/handlers"
	"queued/internal/loop"
	"queued/internal/reaper"
	"queued/internal/store"
	"queued/internal/worker"
)

// stopTimeout bounds the stop of everything but the running jobs, which have
// limits of their own.
const stopTimeout = 10 * time.Second

// stopping is the notification of a stop; saying it twice does no harm.
const stopping = "STOPPING=1\nSTATUS=Stopping."

// Options are what a daemon is made of.
type Options struct {
	Config   *config.Config
	Handlers *handlers.Registry
	Drain    bool // stop when no due job is left
	Build    admin.Build
	Log      *zap.Logger
	// Signals asks for a stop with its first value; the second makes it hurry.
	Signals <-chan os.Signal
	// Notify tells the service manager; nil when there is none. See sd_notify(3).
	Notify func(state string)
}

// Run runs a daemon until it is asked to stop by ctx or a signal, or ends by
// itself as configured, and returns nil then. A database that is away is waited
// for, also at the start; one whose schema does not fit is an error that is a
// store.ErrSchema.
func Run(ctx context.Context, o Options) (err error) {
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	d := &daemon{Options: o, owner: newOwner(), started: time.Now(), stops: stopStack{log: o.Log}}
	ctx, d.stop = context.WithCancel(ctx)
	defer d.stop()
	d.stops.loop("signals", d.signals)
	d.setPhase("starting")
	defer func() {
		d.setPhase("stopping")
		o.Notify(stopping)
		// Past the cancel of ctx: this is what happens after it.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopTimeout, fmt.Errorf("stopping took longer than %s", stopTimeout))
		defer cancel()
		err = errors.Join(err, d.stops.run(ctx))
		if err == nil {
			o.Log.Info("stopped")
		}
		_ = o.Log.Sync() // pipes and terminals can't, and nothing is lost by it
	}()
	return d.run(ctx)
}

type daemon struct {
	Options
	owner   int64
	started time.Time
	stop    context.CancelFunc
	stops   stopStack
	metrics *admin.Metrics
	store   store.Store
	working time.Time                   // when the pool was made; set before pool
	pool    atomic.Pointer[worker.Pool] // nil until the database is there
	phase   atomic.Pointer[string]      // what keeps it from running jobs, "" when it runs
}

// setPhase says what the daemon is doing until it runs, or when it stops.
func (d *daemon) setPhase(p string) { d.phase.Store(&p) }

// newOwner makes the random number that stands for this start of the process.
func newOwner() int64 {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails, see crypto/rand
		if n := int64(binary.BigEndian.Uint64(b[:]) >> 1); n != 0 {
			return n
		}
	}
}

// signals asks for the stop and makes it hurry.
func (d *daemon) signals(ctx context.Context) {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case sig := <-d.Signals:
			if n == 1 {
				d.Log.Info("asked to stop, running jobs may finish; a second signal cancels them", zap.String("signal", sig.String()))
				d.stop()
				d.Notify(stopping)
				continue
			}
			d.Log.Info("asked to hurry, running jobs are cancelled", zap.String("signal", sig.String()))
			if p := d.pool.Load(); p != nil {
				p.Hurry()
			}
		}
	}
}

func (d *daemon) run(ctx context.Context) error {
	c := d.Config
	queues := make([]string, len(c.Queues))
	for i, q := range c.Queues {
		queues[i] = q.Name
	}
	kinds := d.Handlers.Kinds()
	d.Log.Info("starting", zap.String("version", d.Build.Version), zap.Int("pid", os.Getpid()), zap.Int64("owner", d.owner),
		zap.Strings("queues", queues), zap.Strings("kinds", kinds))

	d.metrics = admin.NewMetrics(d.Build, queues, kinds)
	if !c.HTTP.Off() {
		srv, err := admin.Listen(ctx, c.HTTP.Listen, d.metrics, d, d.Log)
		if err != nil {
			return fmt.Errorf("%w; if another daemon runs on this machine, give http.listen another port or set it to off", err)
		}
		go srv.Serve() // until its step, which waits for it
		d.stops.push("http", srv.Stop)
		d.Log.Info("serving metrics and health", zap.String("metrics", "http://"+srv.Addr()+"/metrics"), zap.String("ready", "http://"+srv.Addr()+"/readyz"))
	}
	st, err := OpenStore(c, d.Log)
	if err != nil {
		return err
	}
	d.store = st
	d.stops.push("store", func(context.Context) error { return st.Close() })

	d.Notify("READY=1\nSTATUS=Looking for the database.")
	if err := d.await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop while it waited
		}
		return err
	}
	d.stops.loop("metrics of the queues", func(ctx context.Context) { d.metrics.Collect(ctx, st, queues, d.Log) })
	d.register(queues, kinds)
	return d.work(ctx)
}

// await waits until the database is there with the schema that this binary needs.
// The embedded one is migrated here: it belongs to the daemon.
func (d *daemon) await(ctx context.Context) error {
	outage := loop.Outage{Log: d.Log, Begun: "waiting for the database", Over: "the database is there"}
	backoff := loop.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		desc, err := d.prepare(ctx)
		if err == nil {
			outage.OK()
			d.Log.Info("database", zap.String("server", desc.Server), zap.String("where", desc.Where), zap.String("claim", desc.Claim), zap.String("why", desc.Why))
			return nil
		}
		if ctx.Err() != nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrConflict) {
			return err
		}
		outage.Failed(err)
		d.setPhase("waiting for the database: " + err.Error())
		d.Notify("STATUS=Waiting for the database.")
		loop.Sleep(ctx, backoff.Next(), nil)
	}
}

func (d *daemon) prepare(ctx context.Context) (store.Description, error) {
	desc, err := d.store.Describe(ctx)
	if err != nil {
		return desc, err
	}
	if !d.Config.Database.Server() {
		err = d.store.MigrateUp(ctx, 0, func(m store.Migration) {
			d.Log.Info("migrated the embedded database", zap.Int("version", m.Version), zap.String("name", m.Name))
		})
		if err != nil {
			return desc, err
		}
	}
	return desc, d.store.CheckSchema(ctx)
}

// register keeps the row by which others know that this daemon lives and which
// kinds it has handlers for.
func (d *daemon) register(queues, kinds []string) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	me := store.Daemon{Owner: d.owner, Host: host, PID: os.Getpid(), Version: d.Build.Version, Queues: queues, Kinds: kinds, Started: d.started}
	d.stops.push("registration", func(ctx context.Context) error { return d.store.Unregister(ctx, d.owner) })
	d.stops.loop("heartbeat of the registration", func(ctx context.Context) {
		outage := loop.Outage{Log: d.Log, Begun: "can't register this daemon", Over: "this daemon is registered again"}
		for {
			err := d.store.Register(ctx, me, d.Config.Worker.Lease)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				outage.Failed(err)
			default:
				outage.OK()
			}
			if !loop.Sleep(ctx, d.Config.Worker.Heartbeat, nil) {
				return
			}
		}
	})
}

// work runs reaper and worker until the stop.
func (d *daemon) work(ctx context.Context) error {
	c := d.Config
	r, err := reaper.New(reaper.Config{
		Policies: d.Handlers, Default: c.Defaults, Owner: d.owner, Lease: c.Worker.Lease,
		Interval: c.Reaper.Interval, Grace: c.Reaper.Grace,
		FinishedAge: c.Retention.Done, DeadAge: c.Retention.Dead,
		Logger: d.Log, Metrics: d.metrics,
	}, d.store)
	if err != nil {
		return err
	}
	lanes := make([]worker.Lane, len(c.Queues))
	for i, q := range c.Queues {
		lanes[i] = worker.Lane{Queue: q.Name, Workers: q.Workers}
	}
	p, err := worker.New(worker.Config{
		Lanes: lanes, Handlers: d.Handlers, Owner: d.owner,
		Lease: c.Worker.Lease, Heartbeat: c.Worker.Heartbeat, PollInterval: c.Worker.PollInterval,
		ShutdownTimeout: c.Worker.ShutdownTimeout, CancelGrace: max(c.Worker.CancelGrace, d.Handlers.StopTime()), UnknownKindGrace: c.Worker.UnknownKindGrace,
		MaxJobs: c.Worker.MaxJobs, MaxJobsSpread: c.Worker.MaxJobsSpread, Drain: d.Drain,
		Logger: d.Log, Metrics: d.metrics,
	}, countedLeases{d.store, d.metrics})
	if err != nil {
		return err
	}
	d.metrics.Watch(d.store.Meter(), p.State)
	d.stops.loop("reaper", r.Run)
	d.working = time.Now()
	d.pool.Store(p)
	d.setPhase("")
	d.Notify("STATUS=Running.")
	reason := p.Run(ctx)
	d.setPhase("stopping: " + string(reason))
	return nil
}

// countedLeases tells the metrics of renewals.
type countedLeases struct {
	store.Store
	metrics *admin.Metrics
}

// Renew is that of store.Leaser.
func (s countedLeases) Renew(ctx context.Context, owner int64, lease time.Duration, tokens []int64) (lost []int64, err error) {
	lost, err = s.Store.Renew(ctx, owner, lease, tokens)
	if err == nil {
		s.metrics.Leases(len(tokens)-len(lost), len(lost))
	}
	return lost, err
}

// ---- admin.Health

// Alive names the loops that don't turn. Each turn takes a wait and a few calls of
// the database, every one of which ends within its timeout.
func (d *daemon) Alive() []string {
	p := d.pool.Load()
	if p == nil || *d.phase.Load() != "" {
		return nil // waiting and stopping have an end of their own
	}
	const patience = 10 * time.Second
	limit := 3*d.Config.Database.Timeout + patience
	s := p.State()
	var reasons []string
	for _, l := range []struct {
		name  string
		turn  time.Time
		limit time.Duration
	}{
		{"claim loop", s.ClaimTurn, limit + d.Config.Worker.PollInterval},
		{"lease loop", s.LeaseTurn, limit + d.Config.Worker.Heartbeat},
	} {
		if since := time.Since(later(l.turn, d.working)); since > l.limit {
			reasons = append(reasons, fmt.Sprintf("%s has not turned for %s", l.name, since.Round(time.Second)))
		}
	}
	return reasons
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Ready says whether jobs are being run, and asks the database.
func (d *daemon) Ready(ctx context.Context) []string {
	if p := *d.phase.Load(); p != "" {
		return []string{p}
	}
	if err := d.store.Ping(ctx); err != nil {
		return []string{err.Error()}
	}
	if err := d.store.CheckSchema(ctx); err != nil {
		return []string{err.Error()}
	}
	return nil
}
