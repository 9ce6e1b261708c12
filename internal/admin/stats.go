package admin

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"queued/internal/loop"
	"queued/internal/store"
)

const (
	statsInterval = 15 * time.Second
	statsTimeout  = 2 * time.Second
)

// StatsStore is the part of a store that the metrics of queues need.
type StatsStore interface {
	Stats(ctx context.Context) ([]store.QueueStats, error)
	Describe(ctx context.Context) (store.Description, error)
}

// Collect looks at the queues every 15 s until ctx ends. A scrape shows what was
// seen last, however slow the database is.
func (m *Metrics) Collect(ctx context.Context, s StatsStore, queues []string, log *zap.Logger) {
	outage := loop.Outage{Log: log, Begun: "can't look at the queues for the metrics", Over: "looking at the queues again"}
	described := false
	for {
		err := m.collect(ctx, s, queues, &described)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.up.Set(0)
			m.statsErrors.Inc()
			outage.Failed(err)
		default:
			m.up.Set(1)
			m.statsSucceeded.SetToCurrentTime()
			outage.OK()
		}
		if !loop.Sleep(ctx, loop.Jitter(statsInterval, 0.1), nil) {
			return
		}
	}
}

func (m *Metrics) collect(ctx context.Context, s StatsStore, queues []string, described *bool) error {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if !*described {
		d, err := s.Describe(ctx)
		if err != nil {
			return err
		}
		m.storeInfo.WithLabelValues(label(d.Driver), label(d.Server), label(d.Claim)).Set(1)
		*described = true
	}
	stats, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	m.setQueues(stats, queues)
	return nil
}

// setQueues replaces what is shown of queues. The daemon's own are always there;
// those that are too many count together.
func (m *Metrics) setQueues(stats []store.QueueStats, own []string) {
	shown := map[string]store.QueueStats{}
	for _, q := range own {
		shown[label(q)] = store.QueueStats{}
	}
	for _, s := range stats {
		s.Queue = label(s.Queue)
		if _, known := shown[s.Queue]; !known && len(shown) >= maxQueues {
			s.Queue = other
		}
		sum := shown[s.Queue]
		sum.Due += s.Due
		sum.Scheduled += s.Scheduled
		sum.Running += s.Running
		sum.Dead += s.Dead
		sum.OldestDue = max(sum.OldestDue, s.OldestDue)
		shown[s.Queue] = sum
	}
	m.queues.last.Store(&shown)
}

// queueCollector exports what was last seen of the queues.
type queueCollector struct {
	last atomic.Pointer[map[string]store.QueueStats]
}

var (
	queueJobs = desc("queue_jobs", "Jobs in the database by state, counted up to 100000. All daemons show the same.", "queue", "state")
	oldestDue = desc("queue_oldest_due_seconds", "How long the oldest due job has waited, 0 without one. All daemons show the same.", "queue")
)

// Describe implements prometheus.Collector.
func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- queueJobs
	ch <- oldestDue
}

// Collect implements prometheus.Collector.
func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	last := c.last.Load()
	if last == nil {
		return
	}
	for q, s := range *last {
		for _, v := range []struct {
			state string
			jobs  int64
		}{{"due", s.Due}, {"scheduled", s.Scheduled}, {"running", s.Running}, {"dead", s.Dead}} {
			ch <- prometheus.MustNewConstMetric(queueJobs, prometheus.GaugeValue, float64(v.jobs), q, v.state)
		}
		ch <- prometheus.MustNewConstMetric(oldestDue, prometheus.GaugeValue, s.OldestDue.Seconds(), q)
	}
}
