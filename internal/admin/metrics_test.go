package admin

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"queued/internal/reaper"
	"queued/internal/store"
	"queued/internal/worker"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testBuild = Build{Version: "v1.2.3", Revision: "abc", Go: "go1.26"}

// busy are metrics of a daemon that has done a bit of everything.
func busy() *Metrics {
	m := newMetrics(testBuild, []string{"default", "mail"}, []string{"hello", "send"})
	k := m.Kind("default", "hello")
	k.Ended(worker.Ending{Outcome: worker.Done, Started: true, Wait: 20 * time.Millisecond, Took: 3 * time.Second})
	k.Ended(worker.Ending{Outcome: worker.Unrecorded, Started: true, Wait: time.Millisecond, Took: 40 * time.Minute})
	k.Ended(worker.Ending{Outcome: worker.Released})
	m.Kind("mail", "(unknown)").Ended(worker.Ending{Outcome: worker.Postponed})
	m.Claimed(5, 2*time.Millisecond)
	m.Claimed(0, time.Millisecond)
	m.Finished(3, 4*time.Millisecond)
	for _, e := range worker.Events() {
		m.Count(e, 2)
	}
	m.Leases(7, 1)
	m.Reaped(reaper.Retried, false, 3)
	m.Reaped(reaper.Buried, true, 1)
	m.Retained(store.FinishedJobs, 500)
	m.setQueues([]store.QueueStats{
		{Queue: "default", Due: 12, Scheduled: 3, Running: 2, Dead: 1, OldestDue: 1500 * time.Millisecond},
		{Queue: "gone", Dead: 4},
	}, []string{"default", "mail"})
	var meter store.Meter
	meter.RoundTrips.Store(99)
	meter.Deadlocks.Store(2)
	m.Watch(&meter, func() worker.State {
		return worker.State{
			Unwritten: 4, Overdue: 1, OldestRun: 2500 * time.Millisecond,
			Lanes: []worker.LaneState{
				{Lane: worker.Lane{Queue: "default", Workers: 16}, Running: 2, Buffered: 9},
				{Lane: worker.Lane{Queue: "mail", Workers: 4}},
			},
		}
	})
	return m
}

func exposition(t *testing.T, m *Metrics) string {
	t.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestMetrics_AreAsWrittenDown(t *testing.T) {
	t.Parallel()
	const golden = "testdata/metrics.txt"
	got := exposition(t, busy())
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the metrics changed; go test -update writes them down, and alerts and docs must follow (-want +got):\n%s", diff)
	}
}

func TestMetrics_KeepToTheConventions(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(busy().reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestKind_UnregisteredOnesShareALabel(t *testing.T) {
	t.Parallel()
	m := newMetrics(testBuild, []string{"default"}, []string{"hello"})
	for _, kind := range []string{"Hello", "hello ", "x\xff", "(unknown)"} {
		m.Kind("default", kind).Ended(worker.Ending{Outcome: worker.Dead})
	}
	if got := testutil.ToFloat64(m.runs.WithLabelValues("default", other, "dead")); got != 4 {
		t.Errorf("got %v dead ones under %q, want 4", got, other)
	}
}

// Producers can invent any number of queues, with any bytes in their names.
func TestQueues_LabelsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMetrics(testBuild, nil, nil)
	var stats []store.QueueStats
	for i := range 10 * maxQueues {
		stats = append(stats, store.QueueStats{Queue: strings.Repeat("q", i+1), Due: 1})
	}
	stats = append(stats, store.QueueStats{Queue: "\xff", Due: 1}, store.QueueStats{Queue: "\xfe", Due: 1})
	m.setQueues(stats, []string{"own"})
	text := exposition(t, m)
	if got := strings.Count(text, `state="due"`); got != maxQueues+1 {
		t.Errorf("got %d queues, want %d and one for the others", got, maxQueues)
	}
	if !strings.Contains(text, `queued_queue_jobs{queue="own",state="due"} 0`) {
		t.Error("the daemon's own queue is missing")
	}
}

// fakeStats is a StatsStore that answers what it is set to.
type fakeStats struct {
	mu    sync.Mutex
	err   error
	hang  bool
	calls int
}

func (f *fakeStats) set(hang bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang, f.err = hang, err
}

func (f *fakeStats) called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeStats) Describe(context.Context) (store.Description, error) {
	return store.Description{Driver: "sqlite", Server: "SQLite 3", Claim: "single_writer"}, nil
}

func (f *fakeStats) Stats(ctx context.Context) ([]store.QueueStats, error) {
	f.mu.Lock()
	f.calls++
	hang, err := f.hang, f.err
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []store.QueueStats{{Queue: "default", Due: 7}}, err
}

func TestCollect_ShowsTheLastAnswerWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(testBuild, nil, nil)
		s := &fakeStats{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Collect(ctx, s, []string{"default"}, zap.NewNop())
		}()
		check := func(when string, up float64) {
			t.Helper()
			synctest.Wait()
			if got := testutil.ToFloat64(m.up); got != up {
				t.Errorf("%s: db_up: got %v, want %v", when, got, up)
			}
			if !strings.Contains(exposition(t, m), `queued_queue_jobs{queue="default",state="due"} 7`) {
				t.Errorf("%s: the queue is not shown", when)
			}
		}
		check("at the start", 1)
		s.set(true, nil)
		time.Sleep(2*statsInterval + statsTimeout)
		check("database silent", 0)
		s.set(false, errors.New("away"))
		time.Sleep(2 * statsInterval)
		check("database away", 0)
		s.set(false, nil)
		time.Sleep(2 * statsInterval)
		check("database back", 1)
		// However often it is scraped.
		calls := s.called()
		for range 100 {
			exposition(t, m)
		}
		if n := s.called() - calls; n != 0 {
			t.Errorf("scrapes looked at the database %d times", n)
		}
		cancel()
		<-done
	})
}
