package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var retainLaws = []law{
	{"Retain_DeletesFinishedJobsAtTheAgeNotBefore", retainFinishedBoundary},
	{"Retain_CountsTheAgeFromTheEnd", retainFromTheEnd},
	{"Retain_NeverDeletesReadyOrRunningJobs", retainLive},
	{"Retain_DeletesDeadLettersByTheirDeath", retainDead},
	{"Retain_DeletesErrorsByTheirTime", retainErrors},
	{"Retain_DeletesCountersByTheirMinute", retainCounters},
	{"Retain_DeletesDaemonsByTheirLastLife", retainDaemons},
	{"Retain_WalksInIDOrderBatchByBatch", retainWalk},
	{"Retain_IsDoneWhenNoOlderRowLiesAhead", retainDone},
	{"Retain_OfAnUnknownTableIsAnError", retainUnknown},
}

const age = 24 * time.Hour

// retainAll runs Retain from the start to the end at a frozen time.
func (f *fixture) retainAll(now time.Time, what store.Retained, batch int) (deleted int) {
	f.t.Helper()
	s := f.at(now)
	cursor := int64(0)
	for calls := 0; ; calls++ {
		r, err := s.Retain(f.t.Context(), what, age, cursor, batch)
		if err != nil {
			f.t.Fatalf("retain %s: %v", what, err)
		}
		if r.Deleted > batch {
			f.t.Errorf("retain %s: deleted %d rows in a batch of %d", what, r.Deleted, batch)
		}
		deleted += r.Deleted
		if r.Done {
			if r.Next != 0 {
				f.t.Errorf("retain %s: done with next %d, want 0", what, r.Next)
			}
			return deleted
		}
		if calls > 1000 {
			f.t.Fatalf("retain %s: no end", what)
		}
		cursor = r.Next
	}
}

// wantRetained checks that rows are deleted at last plus age, and not a millisecond before.
func (f *fixture) wantRetained(what store.Retained, last time.Time, rows int) {
	f.t.Helper()
	if n := f.retainAll(last.Add(age-time.Millisecond), what, 100); n != 0 {
		f.t.Errorf("%s: deleted %d rows 1 ms before their age", what, n)
	}
	if n := f.retainAll(last.Add(age), what, 100); n != rows {
		f.t.Errorf("%s: deleted %d rows at their age, want %d", what, n, rows)
	}
}

func retainFinishedBoundary(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "done", At: t0.Add(-time.Minute)}, job.New{Kind: "cancelled", At: t0.Add(-time.Minute)}, job.New{Kind: "ready", At: t0.Add(time.Hour)})
	s := f.at(t0)
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{done(j, "")}}); err != nil {
		t.Fatal(err)
	}
	if err := s.CancelJob(t.Context(), f.int("SELECT id FROM jobs WHERE kind = 'cancelled'")); err != nil {
		t.Fatal(err)
	}
	f.wantRetained(store.FinishedJobs, t0, 2)
	if diff := cmp.Diff([]string{"ready"}, f.dump("SELECT kind FROM jobs")); diff != "" {
		t.Errorf("jobs left (-want +got):\n%s", diff)
	}
}

// A job that waited for a year and ended now is kept for its time.
func retainFromTheEnd(t *testing.T, f *fixture) {
	if _, err := f.at(t0.Add(-365*24*time.Hour)).Enqueue(t.Context(), []job.New{{Kind: "k", At: t0}}); err != nil {
		t.Fatal(err)
	}
	s := f.at(t0)
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{done(j, "")}}); err != nil {
		t.Fatal(err)
	}
	f.wantRetained(store.FinishedJobs, t0, 1)
}

func retainLive(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "ready"}, job.New{Kind: "later", Delay: time.Hour})
	f.one(job.New{Priority: 9})
	retried := f.one(job.New{Priority: 9})
	f.finish(store.Recorded, retry(retried, 0, "failed"))
	revived := f.enqueue(job.New{Kind: "k"})[0]
	for _, change := range []func(context.Context, int64) error{f.CancelJob, f.RetryJob} {
		if err := change(t.Context(), revived); err != nil {
			t.Fatal(err)
		}
	}
	before := f.dump("SELECT id, status FROM jobs ORDER BY id")
	if n := f.retainAll(time.Now().Add(4*365*24*time.Hour), store.FinishedJobs, 100); n != 0 {
		t.Errorf("deleted %d", n)
	}
	if diff := cmp.Diff(before, f.dump("SELECT id, status FROM jobs ORDER BY id")); diff != "" {
		t.Errorf("jobs (-before +after):\n%s", diff)
	}
}

func retainDead(t *testing.T, f *fixture) {
	if _, err := f.at(t0.Add(-365*24*time.Hour)).Enqueue(t.Context(), []job.New{{Kind: "k", At: t0}}); err != nil {
		t.Fatal(err)
	}
	s := f.at(t0)
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{bury(j, job.ReasonPermanent, "no")}}); err != nil {
		t.Fatal(err)
	}
	f.wantRetained(store.DeadJobs, t0, 1)
	f.wantRetained(store.JobErrors, t0, 1)
}

func retainErrors(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	for i := range 3 {
		s := f.at(t0.Add(time.Duration(i) * time.Hour))
		j := f.claimOf(s, 1).Jobs[0]
		if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{retry(j, 0, "no")}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		f.wantRetained(store.JobErrors, t0.Add(time.Duration(i)*time.Hour), 1)
	}
}

func retainCounters(t *testing.T, f *fixture) {
	minute := t0.Truncate(time.Minute)
	for i := range 5 {
		fin := store.Finish{Owner: owner, Counts: []store.Count{{Queue: "q", Kind: "a", Done: 1}, {Queue: "q", Kind: "b", Done: 1}}}
		if _, err := f.at(minute.Add(time.Duration(i)*time.Minute)).Finish(t.Context(), fin); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		f.wantRetained(store.Counters, minute.Add(time.Duration(i)*time.Minute), 2)
	}
	if n := f.retainAll(minute.Add(age+time.Hour), store.Counters, 2); n != 6 {
		t.Errorf("deleted %d rows by twos, want 6", n)
	}
}

func retainDaemons(t *testing.T, f *fixture) {
	for i := range int64(3) {
		if err := f.at(t0.Add(-time.Minute)).Register(t.Context(), store.Daemon{Owner: i + 1}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.at(t0).Register(t.Context(), store.Daemon{Owner: 9}, time.Minute); err != nil {
		t.Fatal(err)
	}
	f.wantRetained(store.Daemons, t0, 3)
	if diff := cmp.Diff([]string{"9"}, f.dump("SELECT owner FROM daemons")); diff != "" {
		t.Errorf("daemons left (-want +got):\n%s", diff)
	}
}

// finishedAt makes a done job that was created and ended at a time.
func (f *fixture) finishedAt(at time.Time) int64 {
	f.t.Helper()
	return f.insertRaw("k", cols{"status": "done", "created_at": at, "available_at": at, "finished_at": at})
}

func retainWalk(t *testing.T, f *fixture) {
	old, young := t0.Add(-2*age), t0
	var kept []string
	for i := range 20 {
		if i%3 == 0 {
			kept = append(kept, fmt.Sprint(f.insertRaw("k", cols{"created_at": old, "available_at": t0.Add(time.Hour)})))
			continue
		}
		f.finishedAt(old)
	}
	kept = append(kept, fmt.Sprint(f.finishedAt(young)))
	s := f.at(t0)
	cursor := int64(0)
	var deleted []int
	for {
		r, err := s.Retain(t.Context(), store.FinishedJobs, age, cursor, 6)
		if err != nil {
			t.Fatal(err)
		}
		deleted = append(deleted, r.Deleted)
		if r.Done {
			break
		}
		if r.Next <= cursor {
			t.Fatalf("next after %d: got %d", cursor, r.Next)
		}
		cursor = r.Next
	}
	// 21 rows, two of three old and done.
	if diff := cmp.Diff([]int{4, 4, 4, 1}, deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kept, f.dump("SELECT id FROM jobs ORDER BY id")); diff != "" {
		t.Errorf("jobs left (-want +got):\n%s", diff)
	}
}

func retainDone(t *testing.T, f *fixture) {
	s := f.at(t0)
	retain := func(cursor int64) store.Retention {
		t.Helper()
		r, err := s.Retain(t.Context(), store.FinishedJobs, age, cursor, 5)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if diff := cmp.Diff(store.Retention{Done: true}, retain(0)); diff != "" {
		t.Errorf("empty table (-want +got):\n%s", diff)
	}
	var ids []int64
	for i := range 10 {
		at := t0.Add(-2 * age)
		if i == 2 {
			at = t0 // a single young row means nothing
		}
		ids = append(ids, f.finishedAt(at))
	}
	for range 20 {
		f.finishedAt(t0)
	}
	if diff := cmp.Diff(store.Retention{Deleted: 4, Next: ids[4]}, retain(0)); diff != "" {
		t.Errorf("old rows and a young one (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(store.Retention{Deleted: 5, Next: ids[9]}, retain(ids[4])); diff != "" {
		t.Errorf("old rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(store.Retention{Done: true}, retain(ids[9])); diff != "" {
		t.Errorf("only young rows ahead (-want +got):\n%s", diff)
	}
}

func retainUnknown(t *testing.T, f *fixture) {
	if _, err := f.Retain(t.Context(), "jobs; DROP TABLE jobs", age, 0, 10); err == nil {
		t.Error("no error")
	}
}
