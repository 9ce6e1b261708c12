package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var inspectLaws = []law{
	{"Stats_OfAnEmptyDatabaseAreEmpty", statsEmpty},
	{"Stats_CountEachQueueOnItsOwn", statsCounts},
	{"Stats_OldestDueIsTheWaitOfTheOldestDueJob", statsOldest},
	{"Stats_TheLastHourComesFromTheCounters", statsHour},
	{"ListJobs_FiltersByEveryField", listJobsFilters},
	{"ListJobs_PagesNewestFirst", listJobsPages},
	{"GetJob_OfNoJobIsErrNotFound", getJobNotFound},
	{"GetJob_GivesAPayloadThatIsNotJSONAsAString", getJobNotJSON},
	{"ListDead_FiltersByEveryField", listDeadFilters},
	{"ListDead_PagesNewestFirst", listDeadPages},
	{"GetDead_OfNoDeadLetterIsErrNotFound", getDeadNotFound},
	{"Errors_SpanAttemptsDeathsAndReplays", errorsHistory},
	{"Describe_TellsServerAndWayOfClaiming", describe},
	{"Ping_AnswersWhileTheDatabaseIsThere", ping},
}

func (f *fixture) stats(s store.Store) map[string]store.QueueStats {
	f.t.Helper()
	list, err := s.Stats(f.t.Context())
	if err != nil {
		f.t.Fatalf("stats: %v", err)
	}
	if !slices.IsSortedFunc(list, func(a, b store.QueueStats) int { return strings.Compare(a.Queue, b.Queue) }) {
		f.t.Errorf("queues are not in order: %v", list)
	}
	m := map[string]store.QueueStats{}
	for _, q := range list {
		m[q.Queue] = q
	}
	return m
}

func statsEmpty(t *testing.T, f *fixture) {
	if got := f.stats(f.Store); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func statsCounts(t *testing.T, f *fixture) {
	var jobs []job.New
	for p := range 10 { // one due and one scheduled of each priority
		jobs = append(jobs, job.New{Kind: "k", Queue: "a", Priority: p}, job.New{Kind: "k", Queue: "a", Priority: p, Delay: time.Hour})
	}
	f.enqueue(append(jobs, job.New{Kind: "k", Queue: "b"}, job.New{Kind: "k", Queue: "b"}, job.New{Kind: "k", Queue: "b"}, job.New{Kind: "k", Queue: "c"})...)
	f.insertRaw("k", cols{"queue": "a", "priority": 77})
	f.insertRaw("k", cols{"queue": "a", "priority": -77})
	c, err := f.Claim(t.Context(), request(10, "b"))
	if err != nil {
		t.Fatal(err)
	}
	f.finish(store.Recorded, bury(c.Jobs[0], job.ReasonPermanent, "no"), done(c.Jobs[1], ""))
	if c, err = f.Claim(t.Context(), request(10, "c")); err != nil {
		t.Fatal(err)
	}
	f.finish(store.Recorded, bury(c.Jobs[0], job.ReasonPermanent, "no"))
	for _, d := range f.dead() {
		if d.Queue == "c" {
			if _, err := f.ReplayDead(t.Context(), d.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := f.stats(f.Store)
	for q, s := range got {
		s.OldestDue = 0
		got[q] = s
	}
	want := map[string]store.QueueStats{
		"a": {Queue: "a", Due: 12, Scheduled: 10},
		"b": {Queue: "b", Running: 1, Dead: 1},
		"c": {Queue: "c", Due: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func statsOldest(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Queue: "a", At: t0}, job.New{Kind: "k", Queue: "a", Priority: 9, At: t0.Add(time.Minute)}, job.New{Kind: "k", Queue: "b", At: t0.Add(time.Hour)})
	for _, tt := range []struct{ at, a, b time.Duration }{
		{-time.Millisecond, 0, 0}, {0, 0, 0}, {time.Millisecond, time.Millisecond, 0}, {time.Hour, time.Hour, 0}, {2 * time.Hour, 2 * time.Hour, time.Hour},
	} {
		got := f.stats(f.at(t0.Add(tt.at)))
		if got["a"].OldestDue != tt.a || got["b"].OldestDue != tt.b {
			t.Errorf("at %s: got %s and %s, want %s and %s", tt.at, got["a"].OldestDue, got["b"].OldestDue, tt.a, tt.b)
		}
	}
}

func statsHour(t *testing.T, f *fixture) {
	minute := t0.Truncate(time.Minute)
	for i, at := range []time.Duration{0, 30 * time.Minute, 59 * time.Minute} {
		fin := store.Finish{Owner: int64(i % 2), Counts: []store.Count{{Queue: "q", Kind: "a", Done: 100, Failed: 10, Dead: 1}, {Queue: "q", Kind: "b", Done: 1000}}}
		if _, err := f.at(minute.Add(at)).Finish(t.Context(), fin); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		at time.Duration
		n  int64
	}{{59 * time.Minute, 3}, {time.Hour - time.Millisecond, 3}, {61 * time.Minute, 2}, {118 * time.Minute, 1}, {2 * time.Hour, 0}} {
		got := f.stats(f.at(minute.Add(tt.at)))["q"]
		if got.Done != 1100*tt.n || got.Failed != 10*tt.n || got.Buried != tt.n {
			t.Errorf("after %s: got %+v, want the counts of %d minutes", tt.at, got, tt.n)
		}
	}
}

func listJobsFilters(t *testing.T, f *fixture) {
	names := map[int64]string{}
	add := func(name string, n job.New) int64 {
		id := f.enqueue(n)[0]
		names[id] = name
		return id
	}
	running := add("running", job.New{Kind: "a"})
	ended := add("done", job.New{Kind: "b"})
	c := f.claim(2)
	f.finish(store.Recorded, done(c.Jobs[1], "result"))
	cancelled := add("cancelled", job.New{Kind: "a", Queue: "q"})
	if err := f.CancelJob(t.Context(), cancelled); err != nil {
		t.Fatal(err)
	}
	add("ready", job.New{Kind: "a", Queue: "q", Key: "key"})
	add("scheduled", job.New{Kind: "b", Delay: time.Hour})
	f.wantState(running, job.Running)
	f.wantState(ended, job.Done)
	for _, tt := range []struct {
		filter store.JobFilter
		want   string
	}{
		{store.JobFilter{}, "scheduled ready cancelled done running"},
		{store.JobFilter{State: job.Ready}, "scheduled ready"},
		{store.JobFilter{State: job.Running}, "running"},
		{store.JobFilter{State: job.Running, Kind: "b"}, ""},
		{store.JobFilter{State: job.Running, Before: running}, ""},
		{store.JobFilter{State: job.Done}, "done"},
		{store.JobFilter{State: job.Cancelled}, "cancelled"},
		{store.JobFilter{Queue: "q"}, "ready cancelled"},
		{store.JobFilter{Kind: "a"}, "ready cancelled running"},
		{store.JobFilter{Kind: "A"}, ""},
		{store.JobFilter{Key: "key"}, "ready"},
		{store.JobFilter{Key: "' OR 1 = 1 -- "}, ""},
		{store.JobFilter{Queue: "q", State: job.Ready, Kind: "a", Key: "key"}, "ready"},
		{store.JobFilter{Before: cancelled}, "done running"},
		{store.JobFilter{Limit: 2}, "scheduled ready"},
	} {
		if tt.filter.Limit == 0 {
			tt.filter.Limit = 1000
		}
		rows, err := f.ListJobs(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, names[r.ID])
			if r.Payload != nil {
				t.Errorf("%+v: a row comes with its payload", tt.filter)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.filter, diff)
		}
	}
}

func listJobsPages(t *testing.T, f *fixture) {
	jobs := make([]job.New, 25)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k"}
	}
	want := f.enqueue(jobs...)
	slices.Reverse(want)
	var got []int64
	for before := int64(0); ; before = got[len(got)-1] {
		rows, err := f.ListJobs(t.Context(), store.JobFilter{Before: before, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			got = append(got, r.ID)
		}
		if len(rows) < 10 {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

func getJobNotFound(t *testing.T, f *fixture) {
	for _, id := range []int64{1, 0, -1, 1 << 62} {
		_, err := f.GetJob(t.Context(), id)
		f.wantErr(err, store.ErrNotFound)
	}
}

func getJobNotJSON(t *testing.T, f *fixture) {
	if f.d.ChecksJSON {
		return // such a row can't be
	}
	id := f.insertRaw("k", cols{"payload": `{"cut": "`})
	wantJSON(t, f.row(id).Payload, `"{\"cut\": \""`)
	j := f.claim(1).Jobs[0]
	f.finish(store.Recorded, job.Refuse(j, job.ReasonBadRow, j.Bad))
	r, err := f.GetDead(t.Context(), f.dead()[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	wantJSON(t, r.Payload, `"{\"cut\": \""`)
}

func listDeadFilters(t *testing.T, f *fixture) {
	names := map[int64]string{}
	die := func(name, reason string, n job.New) int64 {
		n.Priority = 9
		j := f.one(n)
		f.finish(store.Recorded, bury(j, reason, name))
		id := f.dead()[0].ID
		names[id] = name
		return id
	}
	die("a", job.ReasonPermanent, job.New{Kind: "a", Key: "key"})
	b := die("b", job.ReasonMaxAttempts, job.New{Kind: "b"})
	die("c", job.ReasonPermanent, job.New{Kind: "a"})
	if _, err := f.ReplayDead(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	f.exec("UPDATE dead_jobs SET queue = 'q' WHERE id = ?", b)
	yes, no := true, false
	for _, tt := range []struct {
		filter store.DeadFilter
		want   string
	}{
		{store.DeadFilter{}, "c b a"},
		{store.DeadFilter{Queue: "q"}, "b"},
		{store.DeadFilter{Queue: "default"}, "c a"},
		{store.DeadFilter{Kind: "a"}, "c a"},
		{store.DeadFilter{Reason: job.ReasonMaxAttempts}, "b"},
		{store.DeadFilter{Key: "key"}, "a"},
		{store.DeadFilter{Replayed: &yes}, "b"},
		{store.DeadFilter{Replayed: &no}, "c a"},
		{store.DeadFilter{Replayed: &no, Queue: "q"}, ""},
		{store.DeadFilter{Replayed: &no, Queue: "default", Kind: "a", Reason: job.ReasonPermanent, Key: "key"}, "a"},
		{store.DeadFilter{Before: b}, "a"},
		{store.DeadFilter{Limit: 1}, "c"},
	} {
		if tt.filter.Limit == 0 {
			tt.filter.Limit = 1000
		}
		rows, err := f.ListDead(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, names[r.ID])
			if r.Payload != nil {
				t.Errorf("%+v: a row comes with its payload", tt.filter)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.filter, diff)
		}
	}
}

func listDeadPages(t *testing.T, f *fixture) {
	jobs := make([]job.New, 25)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k"}
	}
	f.enqueue(jobs...)
	var writes []job.Write
	var want []int64
	for _, j := range f.claim(25).Jobs {
		writes = append(writes, bury(j, job.ReasonPermanent, "no"))
		want = append(want, j.ID)
	}
	f.finish(store.Recorded, writes...)
	slices.Reverse(want)
	var got []int64
	for before := int64(0); ; {
		rows, err := f.ListDead(t.Context(), store.DeadFilter{Before: before, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			got = append(got, r.JobID)
			before = r.ID
		}
		if len(rows) < 10 {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("job ids (-want +got):\n%s", diff)
	}
}

func getDeadNotFound(t *testing.T, f *fixture) {
	for _, id := range []int64{1, 0, -1} {
		_, err := f.GetDead(t.Context(), id)
		f.wantErr(err, store.ErrNotFound)
	}
}

func errorsHistory(t *testing.T, f *fixture) {
	for _, key := range []string{"key", ""} {
		j := f.one(job.New{Key: key})
		jobKey := j.JobKey()
		f.finish(store.Recorded, retry(j, 0, "first"))
		j = f.claim(1).Jobs[0]
		f.finish(store.Recorded, bury(j, job.ReasonMaxAttempts, "second"))
		first := j.ID
		id, err := f.ReplayDead(t.Context(), f.dead()[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		j = f.claim(1).Jobs[0]
		f.finish(store.Recorded, bury(j, job.ReasonPermanent, "third"))
		rows, err := f.Errors(t.Context(), jobKey)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, fmt.Sprint(r.JobID, r.Attempt, " ", r.Error))
		}
		want := []string{fmt.Sprint(first, 1, " first"), fmt.Sprint(first, 2, " second"), fmt.Sprint(id, 1, " third")}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("errors of %q (-want +got):\n%s", jobKey, diff)
		}
	}
	if rows, err := f.Errors(t.Context(), "missing"); err != nil || len(rows) != 0 {
		t.Errorf("errors of no job: %v, %v", rows, err)
	}
}

func describe(t *testing.T, f *fixture) {
	d, err := f.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.Driver != f.db.Dialect || d.Server == "" || d.Where == "" || d.Why == "" || !slices.Contains([]string{"skip_locked", "cas", "single_writer"}, d.Claim) {
		t.Errorf("got %+v", d)
	}
}

func ping(t *testing.T, f *fixture) {
	before := f.everything()
	if err := f.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
	s := f.reopen()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("a closed store answers")
	}
}
