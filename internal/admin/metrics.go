// Package admin tells the outside how the daemon does: Prometheus metrics
// (metrics.go, and stats.go for those that need the database) and health over
// HTTP (server.go).
package admin

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"queued/internal/reaper"
	"queued/internal/store"
	"queued/internal/worker"
)

const (
	namespace = "queued"
	// other is the label of kinds that nobody registered and of queues beyond maxQueues:
	// producers can invent any number of both.
	other     = "other"
	maxQueues = 100
)

// Buckets in seconds. Runs take anything from no time to hours; a client
// library's own buckets end at 10 s.
var (
	runBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400}
	waitBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400}
	callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// Build says which program this is.
type Build struct {
	Version, Revision, Go string
}

// Metrics are those of one daemon, on a registry of their own.
type Metrics struct {
	reg   *prometheus.Registry
	kinds []string // that may be labels

	runs       *prometheus.CounterVec
	runSeconds *prometheus.HistogramVec
	wait       *prometheus.HistogramVec

	claims         prometheus.Counter
	claimed        prometheus.Counter
	claimSeconds   prometheus.Histogram
	recorded       prometheus.Counter
	finishSeconds  prometheus.Histogram
	events         map[worker.Event]prometheus.Counter
	leasesRenewed  prometheus.Counter
	leasesLost     prometheus.Counter
	reaped         map[reaper.Outcome]prometheus.Counter
	orphans        map[reaper.Outcome]prometheus.Counter
	removed        *prometheus.CounterVec
	storeInfo      *prometheus.GaugeVec
	up             prometheus.Gauge
	queues         queueCollector
	statsErrors    prometheus.Counter
	statsSucceeded prometheus.Gauge
}

var (
	_ worker.Metrics = (*Metrics)(nil)
	_ reaper.Metrics = (*Metrics)(nil)
)

// NewMetrics makes the metrics of a daemon that works on these queues and has
// handlers for these kinds.
func NewMetrics(build Build, queues, kinds []string) *Metrics {
	m := newMetrics(build, queues, kinds)
	m.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// newMetrics leaves out what differs from process to process.
func newMetrics(build Build, queues, kinds []string) *Metrics {
	m := &Metrics{reg: prometheus.NewPedanticRegistry(), kinds: kinds}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
		m.reg.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
		m.reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		m.reg.MustRegister(g)
		return g
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
		m.reg.MustRegister(g)
		return g
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
		m.reg.MustRegister(h)
		return h
	}

	gauges("build_info", "Always 1; its labels say which program this is.", "version", "revision", "goversion").
		WithLabelValues(build.Version, build.Revision, build.Go).Set(1)
	m.storeInfo = gauges("store_info", "Always 1; its labels say which database this is and how jobs are claimed there.", "driver", "server", "claim")
	m.up = gauge("db_up", "Whether the last look at the database succeeded.")

	m.claims = counter("claims_total", "Claims that the database answered, those that found nothing included.")
	m.claimed = counter("jobs_claimed_total", "Jobs that were claimed.")
	m.claimSeconds = histograms("claim_duration_seconds", "How long claims took that the database answered.", callBuckets).WithLabelValues().(prometheus.Histogram)
	m.runs = counters("runs_total", "Claimed jobs by how that ended. Outcome unrecorded: it ran, but that could not be written.", "queue", "kind", "outcome")
	m.runSeconds = histograms("run_duration_seconds", "How long handlers ran.", runBuckets, "queue")
	m.wait = histograms("pickup_wait_seconds", "How long jobs waited from when they were due until their handler was called.", waitBuckets, "queue")
	m.recorded = counter("outcomes_recorded_total", "Ends of claimed jobs that were written.")
	m.finishSeconds = histograms("record_duration_seconds", "How long it took to write a batch of outcomes.", callBuckets).WithLabelValues().(prometheus.Histogram)
	m.events = map[worker.Event]prometheus.Counter{}
	for _, e := range worker.Events() {
		m.events[e] = counter(eventMetric(e))
	}
	m.leasesRenewed = counter("leases_renewed_total", "Renewals of leases. A lease covers the jobs of one claim.")
	m.leasesLost = counter("leases_lost_total", "Leases that were gone when they were to be renewed.")
	m.reaped, m.orphans = map[reaper.Outcome]prometheus.Counter{}, map[reaper.Outcome]prometheus.Counter{}
	reaped := counters("jobs_reaped_total", "Jobs whose worker died or lost its lease, by what became of them.", "outcome")
	orphans := counters("orphans_reaped_total", "Jobs that were running with no lease that covers them, by what became of them.", "outcome")
	for _, o := range reaper.Outcomes() {
		m.reaped[o], m.orphans[o] = reaped.WithLabelValues(string(o)), orphans.WithLabelValues(string(o))
	}
	m.removed = counters("rows_removed_total", "Rows that were removed because they had been kept long enough.", "table")
	for _, t := range []store.Retained{store.FinishedJobs, store.DeadJobs, store.JobErrors, store.Counters, store.Daemons} {
		m.removed.WithLabelValues(string(t))
	}
	m.reg.MustRegister(&m.queues)
	m.statsErrors = counter("queue_stats_errors_total", "Failed looks at the queues.")
	m.statsSucceeded = gauge("queue_stats_last_success_timestamp_seconds", "When the queues were last looked at with success.")

	// So that a rate is known from the first event on.
	for _, q := range queues {
		m.runSeconds.WithLabelValues(label(q))
		m.wait.WithLabelValues(label(q))
		for _, k := range append([]string{other}, kinds...) {
			m.Kind(q, k)
		}
	}
	return m
}

func eventMetric(e worker.Event) (name, help string) {
	switch e {
	case worker.ClaimFailed:
		return "claim_errors_total", "Claims that failed."
	case worker.RenewFailed:
		return "lease_renew_errors_total", "Renewals and checks of leases that failed."
	case worker.FinishFailed:
		return "record_errors_total", "Failed tries to write a batch of outcomes."
	case worker.HandlerOverdue:
		return "handlers_overdue_total", "Handlers that went on after they were cancelled and their grace was over."
	default:
		return e.String() + "_total", "Events of the name " + e.String() + "."
	}
}

// label is a name from a producer as a label's value, which must be UTF-8.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// ---- worker.Metrics

// recorder has everything at hand that a run counts: no label is looked up then.
type recorder struct {
	outcomes []prometheus.Counter // by worker.Outcome
	run      prometheus.Observer
	wait     prometheus.Observer
}

// Kind returns the recorder of a kind; all that nobody registered share one label.
func (m *Metrics) Kind(queue, kind string) worker.Recorder {
	if !slices.Contains(m.kinds, kind) {
		kind = other
	}
	r := &recorder{run: m.runSeconds.WithLabelValues(label(queue)), wait: m.wait.WithLabelValues(label(queue))}
	for _, o := range worker.Outcomes() {
		r.outcomes = append(r.outcomes, m.runs.WithLabelValues(label(queue), label(kind), o.String()))
	}
	return r
}

// Ended counts the end of a claimed job.
func (r *recorder) Ended(e worker.Ending) {
	r.outcomes[e.Outcome].Inc()
	if e.Started {
		r.run.Observe(e.Took.Seconds())
		r.wait.Observe(e.Wait.Seconds())
	}
}

// Claimed counts a claim.
func (m *Metrics) Claimed(jobs int, took time.Duration) {
	m.claims.Inc()
	m.claimed.Add(float64(jobs))
	m.claimSeconds.Observe(took.Seconds())
}

// Finished counts outcomes that were written.
func (m *Metrics) Finished(writes int, took time.Duration) {
	m.recorded.Add(float64(writes))
	m.finishSeconds.Observe(took.Seconds())
}

// Count counts an event.
func (m *Metrics) Count(e worker.Event, n int) { m.events[e].Add(float64(n)) }

// ---- reaper.Metrics

// Reaped counts jobs of workers that are gone.
func (m *Metrics) Reaped(o reaper.Outcome, orphan bool, jobs int) {
	if orphan {
		m.orphans[o].Add(float64(jobs))
		return
	}
	m.reaped[o].Add(float64(jobs))
}

// Retained counts rows that were removed.
func (m *Metrics) Retained(what store.Retained, rows int) {
	m.removed.WithLabelValues(string(what)).Add(float64(rows))
}

// Leases counts the renewals of one call.
func (m *Metrics) Leases(renewed, lost int) {
	m.leasesRenewed.Add(float64(renewed))
	m.leasesLost.Add(float64(lost))
}

// ---- what is read when it is scraped

// Watch exports the store's counters and the pool's state. Call it once.
func (m *Metrics) Watch(meter *store.Meter, state func() worker.State) {
	for _, c := range []struct {
		name, help string
		value      func() int64
	}{
		{"db_round_trips_total", "Requests sent to the database.", meter.RoundTrips.Load},
		{"db_deadlocks_total", "Deadlocks that were met, after which the statement was repeated.", meter.Deadlocks.Load},
		{"db_lock_waits_total", "Lock timeouts that were met, after which the statement was repeated.", meter.LockWaits.Load},
		{"db_unavailable_total", "Calls that failed because the database was away.", meter.Unavailable.Load},
		{"db_uncertain_commits_total", "Commits whose answer was lost and whose effect was looked up.", meter.Uncertain.Load},
	} {
		m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: c.name, Help: c.help},
			func() float64 { return float64(c.value()) }))
	}
	m.reg.MustRegister(&poolCollector{state: state, descs: []*prometheus.Desc{
		desc("worker_slots", "Jobs that can run at the same time.", "queue"),
		desc("jobs_running", "Jobs that run.", "queue"),
		desc("jobs_buffered", "Jobs that are claimed and wait for a worker.", "queue"),
		desc("outcomes_unwritten", "Ends of jobs that wait to be written."),
		desc("handlers_overdue", "Handlers that go on after they were cancelled and their grace was over."),
		desc("oldest_run_seconds", "How long the oldest job has been running, 0 without one."),
	}})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// poolCollector exports a pool's state.
type poolCollector struct {
	state func() worker.State
	descs []*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.state()
	gauge := func(i int, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[i], prometheus.GaugeValue, v, labels...)
	}
	for _, l := range s.Lanes {
		gauge(0, float64(l.Workers), label(l.Queue))
		gauge(1, float64(l.Running), label(l.Queue))
		gauge(2, float64(l.Buffered), label(l.Queue))
	}
	gauge(3, float64(s.Unwritten))
	gauge(4, float64(s.Overdue))
	gauge(5, s.OldestRun.Seconds())
}
