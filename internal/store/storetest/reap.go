package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var reapLaws = []law{
	{"Expired_FindsLeasesThatEndedGraceAgo", expiredBoundary},
	{"Expired_GivesTheOldestFirstUpToTheLimit", expiredOrder},
	{"Expired_GivesTheJobsStillRunningUnderTheLease", expiredJobs},
	{"Reap_TakesTheLeaseAndWritesTheJobs", reapWrites},
	{"Reap_AfterRenewReturnsErrLeaseLostAndWritesNothing", reapAfterRenew},
	{"Reap_BeforeTheGraceIsOverReturnsErrLeaseLost", reapEarly},
	{"Reap_TwiceReturnsErrLeaseLostAndWritesNothing", reapTwice},
	{"Reap_OfASettledLeaseReturnsErrLeaseLost", reapSettled},
	{"Reap_LeavesJobsThatChangedSinceTheyWereRead", reapStale},
	{"Reap_OfALeaseWithoutJobsRemovesIt", reapEmpty},
	{"Reap_ADeadLetterThatCantBeWrittenKeepsTheJob", reapNotBuried},
	{"Orphans_AreRunningRowsWithoutALease", orphans},
	{"Orphans_WalksTheTableSpanBySpan", orphansWalk},
	{"Orphans_MakesRowsVisibleThatAStatementFromOutsideMadeReady", orphansRepair},
}

func expiredBoundary(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	c := f.claimOf(f.at(t0), 1)
	end := t0.Add(lease)
	for _, tt := range []struct {
		at    time.Duration
		grace time.Duration
		want  bool
	}{
		{-time.Millisecond, 0, false},
		{0, 0, true},
		{time.Millisecond, 0, true},
		{grace - time.Millisecond, grace, false},
		{grace, grace, true},
		{grace + time.Millisecond, grace, true},
	} {
		leases, err := f.at(end.Add(tt.at)).Expired(t.Context(), tt.grace, 10)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(leases) == 1; got != tt.want {
			t.Errorf("%s after the end, grace %s: expired %t, want %t", tt.at, tt.grace, got, tt.want)
		}
		if len(leases) == 1 && (leases[0].Token != c.Token || leases[0].Owner != owner || leases[0].Expired != tt.at) {
			t.Errorf("lease: got %+v, want token %d, owner %d, expired %s ago", leases[0], c.Token, owner, tt.at)
		}
	}
}

func expiredOrder(t *testing.T, f *fixture) {
	var want []int64
	for i := range 5 {
		f.enqueue(job.New{Kind: "k", At: t0})
		want = append(want, f.claimOf(f.at(t0.Add(time.Duration(i)*time.Second)), 1).Token)
	}
	for _, limit := range []int{3, 5, 100} {
		leases, err := f.at(t0.Add(time.Hour)).Expired(t.Context(), grace, limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, l := range leases {
			got = append(got, l.Token)
		}
		if diff := cmp.Diff(want[:min(limit, 5)], got); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
}

func expiredJobs(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "a", At: t0, Payload: []byte(`{"large": true}`), Key: "key", MaxAttempts: 3, Timeout: time.Second, Priority: 4}, job.New{Kind: "b", At: t0},
		job.New{Kind: "c", At: t0}, job.New{Kind: "d", At: t0}, job.New{Kind: "e", At: t0})
	c := f.claimOf(f.at(t0), 10)
	byKind := map[string]*job.Job{}
	for _, j := range c.Jobs {
		byKind[j.Kind] = j
	}
	f.finish(store.Recorded, done(byKind["b"], ""), job.Release(byKind["c"]))
	if err := f.CancelJob(t.Context(), byKind["d"].ID); err != nil {
		t.Fatal(err)
	}
	f.claimOf(f.at(t0.Add(time.Minute)), 1) // c under another lease
	leases, err := f.at(t0.Add(lease+grace)).Expired(t.Context(), grace, 10)
	if err != nil || len(leases) != 1 {
		t.Fatalf("expired: %v, %v", leases, err)
	}
	byKind["a"].Payload, byKind["e"].Payload = nil, nil
	if diff := cmp.Diff([]*job.Job{byKind["a"], byKind["e"]}, leases[0].Jobs); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
}

func reapWrites(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Key: "a", At: t0}, job.New{Kind: "k", Key: "b", At: t0})
	c := f.claimOf(f.at(t0), 2)
	now := t0.Add(lease + grace)
	a, b := c.Jobs[0], c.Jobs[1]
	fates, err := f.at(now).Reap(t.Context(), c.Token, grace, []job.Write{retry(a, 10*time.Second, "worker died"), bury(b, job.ReasonWorkerDied, "worker died")})
	if err != nil {
		t.Fatal(err)
	}
	f.wantFates(fates, 2, store.Recorded)
	if r := f.row(a.ID); r.State != job.Ready || r.Attempts != 1 || !r.AvailableAt.Equal(now.Add(10*time.Second)) {
		t.Errorf("row of a: got %+v", r)
	}
	f.wantState(b.ID, job.Dead)
	if n := f.int("SELECT COUNT(*) FROM leases"); n != 0 {
		t.Errorf("leases: got %d, want 0", n)
	}
	for key, j := range map[string]*job.Job{"a": a, "b": b} {
		rows, err := f.Errors(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]store.ErrorRow{{JobID: j.ID, Attempt: 1, Error: "worker died", FailedAt: now}}, rows); diff != "" {
			t.Errorf("errors of %s (-want +got):\n%s", key, diff)
		}
	}
}

// wantNoReap checks that the lease can't be reaped and that nothing is written.
func (f *fixture) wantNoReap(j *job.Job) {
	f.t.Helper()
	before := f.everything()
	for name, w := range endings(j) {
		_, err := f.Reap(f.t.Context(), j.Token, grace, []job.Write{w})
		f.wantErr(err, job.ErrLeaseLost)
		if diff := cmp.Diff(before, f.everything()); diff != "" {
			f.t.Fatalf("reap with %s wrote (-before +after):\n%s", name, diff)
		}
	}
}

func reapAfterRenew(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.advance(time.Hour)
	if len(f.expired(f.Store)) != 1 {
		t.Fatal("the lease has not expired")
	}
	if _, err := f.Renew(t.Context(), owner, lease, []int64{j.Token}); err != nil {
		t.Fatal(err)
	}
	f.wantNoReap(j)
	f.finish(store.Recorded, done(j, ""))
}

func reapEarly(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	c := f.claimOf(f.at(t0), 1)
	end := t0.Add(lease + grace)
	_, err := f.at(end.Add(-time.Millisecond)).Reap(t.Context(), c.Token, grace, []job.Write{retry(c.Jobs[0], 0, "")})
	f.wantErr(err, job.ErrLeaseLost)
	f.wantState(c.Jobs[0].ID, job.Running)
	if _, err := f.at(end).Reap(t.Context(), c.Token, grace, []job.Write{retry(c.Jobs[0], 0, "")}); err != nil {
		t.Error(err)
	}
	f.wantState(c.Jobs[0].ID, job.Ready)
}

func reapTwice(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.advance(time.Hour)
	if _, err := f.Reap(t.Context(), j.Token, grace, []job.Write{retry(j, 0, "worker died")}); err != nil {
		t.Fatal(err)
	}
	f.wantNoReap(j)
	f.claim(1)
	f.wantNoReap(j)
}

func reapSettled(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	if _, err := f.Finish(t.Context(), store.Finish{Writes: []job.Write{done(j, "")}, Settled: []int64{j.Token}}); err != nil {
		t.Fatal(err)
	}
	f.advance(time.Hour)
	f.wantNoReap(j)
}

// Between the reaper's read and its write one job ends, one is retried and claimed
// again, one is cancelled, and one is stuck.
func reapStale(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0}, job.New{Kind: "k", At: t0}, job.New{Kind: "k", At: t0}, job.New{Kind: "k", At: t0})
	c := f.claimOf(f.at(t0), 4)
	now := t0.Add(time.Hour)
	leases, err := f.at(now).Expired(t.Context(), grace, 10)
	if err != nil || len(leases) != 1 || len(leases[0].Jobs) != 4 {
		t.Fatalf("expired: %v, %v", leases, err)
	}
	ended, again, cancelled, stuck := leases[0].Jobs[0], leases[0].Jobs[1], leases[0].Jobs[2], leases[0].Jobs[3]
	f.finish(store.Recorded, done(ended, "result"), job.Release(again))
	fresh := f.claimOf(f.at(now), 1)
	if err := f.CancelJob(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	var writes []job.Write
	for _, j := range leases[0].Jobs {
		writes = append(writes, retry(j, 0, "worker died"))
	}
	fates, err := f.at(now).Reap(t.Context(), c.Token, grace, writes)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.Fate{store.LeaseLost, store.LeaseLost, store.LeaseLost, store.Recorded}, fates); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
	f.wantState(ended.ID, job.Done)
	f.wantState(again.ID, job.Running)
	f.wantState(cancelled.ID, job.Cancelled)
	f.wantState(stuck.ID, job.Ready)
	if diff := cmp.Diff([]string{fmt.Sprint(fresh.Token)}, f.dump("SELECT token FROM leases")); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	if n := f.int("SELECT COUNT(*) FROM job_errors"); n != 1 {
		t.Errorf("error rows: got %d, want 1, of the stuck job", n)
	}
	f.finish(store.Recorded, done(fresh.Jobs[0], ""))
}

func reapEmpty(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.finish(store.Recorded, done(j, "")) // and died before the lease was settled
	f.advance(time.Hour)
	leases, err := f.Expired(t.Context(), grace, 10)
	if err != nil || len(leases) != 1 || len(leases[0].Jobs) != 0 {
		t.Fatalf("expired: %v, %v", leases, err)
	}
	if fates, err := f.Reap(t.Context(), j.Token, grace, nil); err != nil || len(fates) != 0 {
		t.Errorf("reap: %v, %v", fates, err)
	}
	if got := f.expired(f.Store); len(got) != 0 {
		t.Errorf("expired after the reap: %v", got)
	}
}

func reapNotBuried(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.advance(time.Hour)
	f.exec("ALTER TABLE dead_jobs RENAME TO away")
	fates, err := f.Reap(t.Context(), j.Token, grace, []job.Write{bury(j, job.ReasonWorkerDied, "worker died")})
	if err != nil {
		t.Fatal(err)
	}
	f.wantFates(fates, 1, store.NotBuried)
	if s := f.row(j.ID).State; s != job.Ready {
		t.Errorf("state: got %s, want ready", s)
	}
}

func (f *fixture) orphans(after int64, span int) (ids []int64, next int64) {
	f.t.Helper()
	jobs, next, err := f.Orphans(f.t.Context(), after, span)
	if err != nil {
		f.t.Fatalf("orphans: %v", err)
	}
	for _, j := range jobs {
		if j.Payload != nil {
			f.t.Errorf("orphan %d comes with its payload", j.ID)
		}
		ids = append(ids, j.ID)
	}
	return ids, next
}

func orphans(t *testing.T, f *fixture) {
	covered := f.one(job.New{})
	f.finish(store.Recorded, done(f.one(job.New{}), ""))
	lost := f.one(job.New{Key: "a", Payload: []byte(`{}`)})
	edited := f.insertRaw("k", cols{"status": "running"})
	f.enqueue(job.New{Kind: "k", Delay: time.Hour})
	f.exec("DELETE FROM leases WHERE token = ?", lost.Token)
	got, next := f.orphans(0, 100)
	wantSet(t, "orphans", got, lost.ID, edited)
	if next != 0 {
		t.Errorf("next: got %d, want 0 at the table's end", next)
	}
	// They are written like any other job, guarded by the token they have.
	list, _, err := f.Orphans(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		f.finish(store.Recorded, retry(j, time.Hour, "worker died"))
		f.wantState(j.ID, job.Ready)
	}
	if got, _ := f.orphans(0, 100); len(got) != 0 {
		t.Errorf("orphans afterwards: %v", got)
	}
	f.finish(store.Recorded, done(covered, ""))
}

func orphansWalk(t *testing.T, f *fixture) {
	var want []int64
	for i := range 12 {
		status := "running"
		if i%3 == 1 {
			status = "done"
		}
		id := f.insertRaw("k", cols{"status": status})
		switch {
		case i == 5: // a hole
			f.exec("DELETE FROM jobs WHERE id = ?", id)
		case status == "running":
			want = append(want, id)
		}
	}
	for _, span := range []int{1, 2, 3, 4, 11, 100} {
		var got []int64
		for after, calls := int64(0), 0; ; calls++ {
			ids, next := f.orphans(after, span)
			got = append(got, ids...)
			if next == 0 {
				break
			}
			if next <= after || calls > 20 {
				t.Fatalf("span %d: next after %d: got %d", span, after, next)
			}
			after = next
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("span %d: orphans (-want +got):\n%s", span, diff)
		}
	}
	if ids, next := f.orphans(1_000_000, 3); len(ids) != 0 || next != 0 {
		t.Errorf("behind the end: got %v, next %d", ids, next)
	}
}

func orphansRepair(t *testing.T, f *fixture) {
	a, b := f.one(job.New{}), f.one(job.New{})
	f.finish(store.Recorded, done(a, ""))
	if err := f.CancelJob(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	f.exec("UPDATE jobs SET status = 'ready' WHERE id IN (?, ?)", a.ID, b.ID)
	f.orphans(0, 100)
	var got []int64
	f.soon("the jobs are claimed", func() bool {
		got = append(got, idsOf(f.claim(10).Jobs)...)
		return len(got) == 2
	})
	wantSet(t, "claimed", got, a.ID, b.ID)
}
