package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var finishLaws = []law{
	{"Finish_DoneEndsTheJobAndKeepsItsResult", finishDone},
	{"Finish_ReadyIsDueAfterTheDelayWithItsErrorRecorded", finishReady},
	{"Finish_KeepDueAndUncountRestoreTheRow", finishRelease},
	{"Finish_DeadMovesTheWholeRow", finishDead},
	{"Finish_DeadWithoutAKeyIsFoundByItsJobKey", finishDeadKeyless},
	{"Finish_ExpiredAndUnknownAndBadAreDeadLettersWithTheirReason", finishReasons},
	{"Finish_OfAForeignTokenWritesNothing", finishForeignToken},
	{"Finish_AfterReapAndAnotherClaimReturnsLeaseLost", finishAfterTakeover},
	{"Finish_AfterCancelReturnsLeaseLost", finishAfterCancel},
	{"Finish_OfAnEditedOrDeletedRowReturnsLeaseLost", finishAfterEdit},
	{"Finish_RepeatedIsRecordedOnce", finishRepeated},
	{"Finish_RepeatedAfterAnotherClaimIsLeaseLost", finishRepeatedLate},
	{"Finish_TellsEachFateOfAMixedBatchInOrder", finishMixed},
	{"Finish_OfAThousandJobsOfManyLeases", finishLarge},
	{"Finish_RemovesSettledLeasesOnly", finishSettled},
	{"Finish_AddsCountsPerMinuteAndOwner", finishCounts},
	{"Finish_NoTextTurnsASuccessIntoAFailure", finishTexts},
	{"Finish_ADeadLetterThatCantBeWrittenKeepsTheJob", finishNotBuried},
	{"Finish_AFailureThatCantBeRecordedKeepsTheRetry", finishNoErrors},
	{"Finish_UncountNeverGoesBelowZero", finishUncountFloor},
	{"Finish_OfNothingIsNoError", finishNothing},
	{"Finish_ToAnyOtherStateIsRefused", finishOtherState},
}

func finishDone(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Key: "a", At: t0}, job.New{Kind: "k", At: t0}, job.New{Kind: "k", At: t0})
	c := f.claimOf(f.at(t0), 10)
	ended := t0.Add(1500 * time.Millisecond)
	fates, err := f.at(ended).Finish(t.Context(), store.Finish{Writes: []job.Write{done(c.Jobs[0], "sent 👍"), done(c.Jobs[1], ""), done(c.Jobs[2], "third")}})
	if err != nil {
		t.Fatal(err)
	}
	f.wantFates(fates, 3, store.Recorded)
	for i, want := range []string{"sent 👍", "", "third"} {
		r := f.row(c.Jobs[i].ID)
		if r.State != job.Done || r.Result != want || r.FinishedAt == nil || !r.FinishedAt.Equal(ended) || r.Attempts != 1 {
			t.Errorf("row %d: got %+v, want done at %s with result %q", i, r, ended, want)
		}
	}
	if n := f.int("SELECT COUNT(*) FROM job_errors"); n != 0 {
		t.Errorf("error rows: got %d, want 0", n)
	}
}

func finishReady(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Key: "a", At: t0})
	s := f.at(t0)
	delays := []time.Duration{0, time.Millisecond, 90 * time.Second, time.Millisecond + 1}
	now := t0
	for i, delay := range delays {
		j := f.claimOf(s, 1).Jobs[0]
		fates, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{retry(j, delay, fmt.Sprintf("failure %d", i+1))}})
		if err != nil {
			t.Fatal(err)
		}
		f.wantFates(fates, 1, store.Recorded)
		due := now.Add((delay + time.Millisecond - 1).Truncate(time.Millisecond))
		r := f.row(j.ID)
		if r.State != job.Ready || !r.AvailableAt.Equal(due) || r.Attempts != i+1 || r.FinishedAt != nil {
			t.Errorf("row after failure %d: got %+v, want ready at %s with %d attempts", i+1, r, due, i+1)
		}
		s, now = f.at(due), due
	}
	rows, err := f.Errors(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	id := f.int("SELECT id FROM jobs")
	want := []store.ErrorRow{
		{JobID: id, Attempt: 1, Error: "failure 1", FailedAt: t0},
		{JobID: id, Attempt: 2, Error: "failure 2", FailedAt: t0},
		{JobID: id, Attempt: 3, Error: "failure 3", FailedAt: t0.Add(time.Millisecond)},
		{JobID: id, Attempt: 4, Error: "failure 4", FailedAt: t0.Add(90*time.Second + time.Millisecond)},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func finishRelease(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	before := f.dump("SELECT id, status, attempts, available_at, expires_at, created_at FROM jobs")
	s := f.at(t0.Add(time.Minute))
	for range 3 {
		j := f.claimOf(f.at(t0.Add(time.Minute)), 1).Jobs[0]
		if j.Attempt != 1 {
			t.Errorf("attempt: got %d, want 1", j.Attempt)
		}
		if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{job.Release(j)}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, f.dump("SELECT id, status, attempts, available_at, expires_at, created_at FROM jobs")); diff != "" {
			t.Errorf("row (-before +after):\n%s", diff)
		}
	}
	j := f.claimOf(f.at(t0.Add(time.Minute)), 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{job.Postpone(j, time.Second)}}); err != nil {
		t.Fatal(err)
	}
	if r := f.row(j.ID); r.Attempts != 0 || !r.AvailableAt.Equal(t0.Add(time.Minute+time.Second)) {
		t.Errorf("postponed row: got %+v", r)
	}
	if n := f.int("SELECT COUNT(*) FROM job_errors"); n != 0 {
		t.Errorf("error rows: got %d, want 0", n)
	}
}

func finishDead(t *testing.T, f *fixture) {
	in := job.New{
		Kind: "mail", Queue: "default", Key: "a", Payload: []byte(`{"to": "x"}`), Priority: 3, MaxAttempts: 4, Timeout: 5 * time.Second,
		At: t0.Add(-time.Minute), ExpiresAt: t0.Add(time.Hour),
	}
	if _, err := f.at(t0.Add(-time.Hour)).Enqueue(t.Context(), []job.New{in}); err != nil {
		t.Fatal(err)
	}
	j := f.claimOf(f.at(t0), 1).Jobs[0]
	died := t0.Add(time.Second)
	fates, err := f.at(died).Finish(t.Context(), store.Finish{Writes: []job.Write{bury(j, job.ReasonPermanent, "no such mailbox")}})
	if err != nil {
		t.Fatal(err)
	}
	f.wantFates(fates, 1, store.Recorded)
	list := f.dead()
	if len(list) != 1 {
		t.Fatalf("dead letters: got %d, want 1", len(list))
	}
	r, err := f.GetDead(t.Context(), list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	want := store.DeadRow{
		ID: r.ID, JobID: j.ID, Queue: "default", Kind: "mail", Key: "a", JobKey: "a", Priority: 3, Attempts: 1, MaxAttempts: 4, TimeoutMS: 5000,
		Reason: job.ReasonPermanent, Error: "no such mailbox", CreatedAt: t0.Add(-time.Hour), AvailableAt: t0.Add(-time.Minute), DiedAt: died, Payload: r.Payload,
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("dead letter (-want +got):\n%s", diff)
	}
	wantJSON(t, r.Payload, `{"to": "x"}`)
	if n := f.int("SELECT COUNT(*) FROM dead_jobs WHERE token = ? AND expires_at = ?", j.Token, t0.Add(time.Hour)); n != 1 {
		t.Error("token and expiry are not carried over")
	}
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 0 {
		t.Errorf("rows in jobs: got %d, want 0", n)
	}
	rows, err := f.Errors(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.ErrorRow{{JobID: j.ID, Attempt: 1, Error: "no such mailbox", FailedAt: died}}, rows); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func finishDeadKeyless(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.finish(store.Recorded, bury(j, job.ReasonMaxAttempts, "no"))
	list, err := f.ListDead(t.Context(), store.DeadFilter{Key: j.JobKey(), Limit: 10})
	if err != nil || len(list) != 1 {
		t.Fatalf("dead letters of %q: got %v, %v", j.JobKey(), list, err)
	}
	if r := list[0]; r.Key != "" || r.JobKey != j.JobKey() || r.JobID != j.ID {
		t.Errorf("dead letter: got %+v", r)
	}
}

func finishReasons(t *testing.T, f *fixture) {
	reasons := []string{job.ReasonPermanent, job.ReasonMaxAttempts, job.ReasonWorkerDied, job.ReasonExpired, job.ReasonUnknownKind, job.ReasonBadRow}
	for _, reason := range reasons {
		j := f.one(job.New{})
		f.finish(store.Recorded, job.Refuse(j, reason, "because "+reason))
	}
	for i, r := range f.dead() {
		want := reasons[len(reasons)-1-i]
		if r.Reason != want || r.Error != "because "+want {
			t.Errorf("dead letter %d: got reason %q, error %q, want %q", i, r.Reason, r.Error, want)
		}
	}
}

// endings are the writes that a run of j can end in.
func endings(j *job.Job) map[string]job.Write {
	return map[string]job.Write{
		"done":     done(j, "result"),
		"retry":    retry(j, time.Second, "failed"),
		"release":  job.Release(j),
		"postpone": job.Postpone(j, time.Second),
		"dead":     bury(j, job.ReasonPermanent, "failed"),
	}
}

// wantLost checks that no ending of j is recorded, and that none leaves a trace.
func (f *fixture) wantLost(j *job.Job) {
	f.t.Helper()
	before := f.everything()
	for name, w := range endings(j) {
		fates, err := f.Finish(f.t.Context(), store.Finish{Writes: []job.Write{w}})
		if err != nil {
			f.t.Fatalf("%s: %v", name, err)
		}
		if fates[0] != store.LeaseLost {
			f.t.Errorf("%s: got %s, want LeaseLost", name, fateName(fates[0]))
		}
		if diff := cmp.Diff(before, f.everything()); diff != "" {
			f.t.Fatalf("%s wrote (-before +after):\n%s", name, diff)
		}
	}
}

func finishForeignToken(t *testing.T, f *fixture) {
	j := f.one(job.New{Key: "a"})
	for _, token := range []int64{j.Token + 1, 0, -1} {
		foreign := *j
		foreign.Token = token
		f.wantLost(&foreign)
	}
	f.finish(store.Recorded, done(j, ""))
	f.wantLost(&job.Job{ID: 987654, Token: j.Token, Attempt: 1})
}

func finishAfterTakeover(t *testing.T, f *fixture) {
	for _, name := range []string{"retried", "retried by finish"} {
		late := f.one(job.New{Key: name})
		f.advance(time.Hour)
		if fates, err := f.Reap(t.Context(), late.Token, grace, []job.Write{retry(late, 0, "worker died")}); err != nil || fates[0] != store.Recorded {
			t.Fatalf("reap: %v, %v", fates, err)
		}
		f.wantLost(late) // taken away
		now := f.claim(1).Jobs[0]
		f.wantLost(late) // and run by another
		if name == "retried by finish" {
			f.finish(store.Recorded, retry(now, time.Hour, "failed"))
			f.wantLost(late)
			continue
		}
		f.finish(store.Recorded, done(now, ""))
		f.wantLost(late)
	}
	// The same at the last attempt.
	late := f.one(job.New{Key: "buried"})
	f.advance(time.Hour)
	if _, err := f.Reap(t.Context(), late.Token, grace, []job.Write{bury(late, job.ReasonWorkerDied, "worker died")}); err != nil {
		t.Fatal(err)
	}
	before := f.everything()
	for _, name := range []string{"done", "retry", "release", "postpone"} {
		f.finish(store.LeaseLost, endings(late)[name])
	}
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func finishAfterCancel(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	if err := f.CancelJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	f.wantLost(j)
	f.wantState(j.ID, job.Cancelled)
	if err := f.RetryJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	f.wantLost(j) // ready again, and not by this worker
}

func finishAfterEdit(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.exec("UPDATE jobs SET token = token + 1 WHERE id = ?", j.ID)
	f.wantLost(j)
	f.exec("UPDATE jobs SET token = token - 1, status = 'done' WHERE id = ?", j.ID)
	before := f.everything()
	f.finish(store.LeaseLost, retry(j, 0, "failed"), bury(j, job.ReasonPermanent, "failed"))
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
	f.exec("DELETE FROM jobs WHERE id = ?", j.ID)
	f.wantLost(j)
}

func finishRepeated(t *testing.T, f *fixture) {
	for _, name := range []string{"done", "retry", "release", "postpone", "dead"} {
		w := endings(f.one(job.New{Key: name}))[name]
		f.finish(store.Recorded, w)
		before := f.everything()
		for range 2 {
			f.finish(store.Recorded, w)
			if diff := cmp.Diff(before, f.everything()); diff != "" {
				t.Errorf("%s, repeated, wrote (-before +after):\n%s", name, diff)
			}
		}
		f.exec("DELETE FROM jobs") // out of the next one's way
	}
	// In a batch of which a part was recorded, and beside one that is new.
	a, b := f.one(job.New{}), f.one(job.New{})
	f.finish(store.Recorded, done(a, ""))
	f.finish(store.Recorded, done(a, ""), done(b, ""))
	c, d := f.one(job.New{}), f.one(job.New{})
	f.finish(store.Recorded, bury(c, job.ReasonPermanent, "no"))
	f.finish(store.Recorded, done(d, ""), bury(c, job.ReasonPermanent, "no"), done(b, ""))
	if n := len(f.dead()); n != 2 {
		t.Errorf("dead letters: got %d, want 2", n)
	}
}

func finishRepeatedLate(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	w := retry(j, 0, "failed")
	f.finish(store.Recorded, w)
	again := f.claim(1).Jobs[0]
	before := f.everything()
	f.finish(store.LeaseLost, w)
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
	f.finish(store.Recorded, done(again, ""))
}

func finishMixed(t *testing.T, f *fixture) {
	jobs := make([]*job.Job, 8)
	for i := range jobs {
		jobs[i] = f.one(job.New{}) // a lease of its own each
	}
	stale := *jobs[6]
	stale.Token++
	if err := f.CancelJob(t.Context(), jobs[3].ID); err != nil {
		t.Fatal(err)
	}
	writes := []job.Write{
		bury(jobs[5], job.ReasonPermanent, "five"), done(jobs[0], "zero"), retry(jobs[2], time.Hour, "two"), done(jobs[3], ""),
		bury(jobs[1], job.ReasonMaxAttempts, "one"), done(&stale, ""), job.Release(jobs[4]), retry(&stale, 0, "stale"), done(jobs[7], ""), bury(&stale, job.ReasonPermanent, "stale"),
	}
	fates, err := f.Finish(t.Context(), store.Finish{Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	r, l := store.Recorded, store.LeaseLost
	if diff := cmp.Diff([]store.Fate{r, r, r, l, r, l, r, l, r, l}, fates); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
	for i, want := range []job.State{job.Done, job.Dead, job.Ready, job.Cancelled, job.Ready, job.Dead, job.Running, job.Done} {
		f.wantState(jobs[i].ID, want)
	}
	errs := f.dump("SELECT error FROM job_errors ORDER BY error")
	if diff := cmp.Diff([]string{"five", "one", "two"}, errs); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	for _, d := range f.dead() {
		if want := map[int64]string{jobs[5].ID: "five permanent", jobs[1].ID: "one max_attempts"}[d.JobID]; d.Error+" "+d.Reason != want {
			t.Errorf("dead letter of job %d: got %q, want %q", d.JobID, d.Error+" "+d.Reason, want)
		}
	}
}

func finishLarge(t *testing.T, f *fixture) {
	jobs := make([]job.New, 1000)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k", Key: fmt.Sprintf("key-%d", i)}
	}
	f.enqueue(jobs...)
	var writes []job.Write
	want := map[int64]job.State{}
	long := strings.Repeat("é", 4000)
	for len(writes) < len(jobs) {
		for _, j := range f.claim(90).Jobs {
			switch n := len(writes) % 10; {
			case n == 3:
				writes, want[j.ID] = append(writes, retry(j, time.Hour, long)), job.Ready
			case n == 7:
				writes, want[j.ID] = append(writes, bury(j, job.ReasonPermanent, long)), job.Dead
			default:
				writes, want[j.ID] = append(writes, done(j, strings.Repeat("r", n*100))), job.Done
			}
		}
	}
	rand.Shuffle(len(writes), func(a, b int) { writes[a], writes[b] = writes[b], writes[a] })
	f.finish(store.Recorded, writes...)
	got := map[int64]job.State{}
	for _, l := range f.dump("SELECT id, status FROM jobs") {
		var id int64
		var state job.State
		if _, err := fmt.Sscanf(l, "%d | %s", &id, &state); err != nil {
			t.Fatal(err)
		}
		got[id] = state
	}
	for _, d := range f.dead() {
		got[d.JobID] = job.Dead
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if n := f.int("SELECT COUNT(*) FROM job_errors"); n != 200 {
		t.Errorf("error rows: got %d, want 200", n)
	}
}

func finishSettled(t *testing.T, f *fixture) {
	a, b, c := f.one(job.New{}), f.one(job.New{}), f.one(job.New{})
	fin := store.Finish{Writes: []job.Write{done(a, ""), done(b, "")}, Settled: []int64{a.Token, 999, c.Token}}
	for range 2 { // repeating it is safe
		if _, err := f.Finish(t.Context(), fin); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{fmt.Sprint(b.Token)}, f.dump("SELECT token FROM leases")); diff != "" {
			t.Errorf("leases (-want +got):\n%s", diff)
		}
	}
	f.wantState(c.ID, job.Running)
}

func finishCounts(t *testing.T, f *fixture) {
	minute := t0.Truncate(time.Minute)
	put := func(at time.Time, owner int64, counts ...store.Count) {
		t.Helper()
		if _, err := f.at(at).Finish(t.Context(), store.Finish{Counts: counts, Owner: owner}); err != nil {
			t.Fatal(err)
		}
	}
	n := store.Count{Queue: "q", Kind: "k", Done: 2, Failed: 1, Dead: 1, RunTime: 1500 * time.Millisecond}
	put(minute, 1, n, store.Count{Queue: "q", Kind: "other", Done: 1})
	put(minute.Add(time.Minute-time.Millisecond), 1, n)
	put(minute.Add(time.Minute), 1, n)
	put(minute, 2, n)
	got := f.dump("SELECT CASE WHEN minute_at = ? THEN 'first' WHEN minute_at = ? THEN 'second' END, owner, queue, kind, done, failed, dead, run_ms"+
		" FROM counters ORDER BY minute_at, owner, queue, kind", minute, minute.Add(time.Minute))
	want := []string{
		"first | 1 | q | k | 4 | 2 | 2 | 3000",
		"first | 1 | q | other | 1 | 0 | 0 | 0",
		"first | 2 | q | k | 2 | 1 | 1 | 1500",
		"second | 1 | q | k | 2 | 1 | 1 | 1500",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func finishTexts(t *testing.T, f *fixture) {
	for i, text := range []string{
		"plain", "👨‍👩‍👧 \U0010FFFF é", "it's \"so\" \\ %s ? -- ; /* */", "two\nlines\r\n\ttab", "\x00", "a\x00b", "\xff\xfe", "cut \xf0\x9f\x91", "\x1b[31m",
		strings.Repeat("x", job.ErrorLimit), strings.Repeat("é", job.ErrorLimit), strings.Repeat("\x00\xff", 100_000), strings.Repeat("'", 3_000_000),
	} {
		clean := job.Clean(text, job.ErrorLimit)
		a, b, c := f.one(job.New{}), f.one(job.New{}), f.one(job.New{})
		f.finish(store.Recorded, done(a, text), retry(b, time.Hour, text), bury(c, job.ReasonPermanent, text))
		if r := f.row(a.ID); r.State != job.Done || r.Result != clean && r.Result != "" || r.Result == "" && text == clean {
			t.Errorf("text %d: job is %s with result %.60q, want %.60q", i, r.State, r.Result, clean)
		}
		for _, j := range []*job.Job{b, c} {
			rows, err := f.Errors(t.Context(), j.JobKey())
			if err != nil || len(rows) != 1 {
				t.Fatalf("text %d: errors %v, %v", i, rows, err)
			}
			if got := rows[0].Error; got != clean || !utf8.ValidString(got) {
				t.Errorf("text %d: error %.60q, want %.60q", i, got, clean)
			}
		}
		if got := f.dead()[0].Error; got != clean {
			t.Errorf("text %d: dead letter's error %.60q, want %.60q", i, got, clean)
		}
		f.wantState(b.ID, job.Ready)
	}
}

func finishNotBuried(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Key: "dead", At: t0}, job.New{Kind: "k", Key: "done", At: t0}, job.New{Kind: "k", Key: "retried", At: t0})
	s := f.at(t0)
	jobs := f.claimOf(s, 3).Jobs
	f.exec("ALTER TABLE dead_jobs RENAME TO away")
	fates, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{
		done(jobs[1], ""), bury(jobs[0], job.ReasonMaxAttempts, "no"), retry(jobs[2], time.Hour, "again"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]store.Fate{store.Recorded, store.NotBuried, store.Recorded}, fates); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
	r := f.row(jobs[0].ID)
	if r.State != job.Ready || !r.AvailableAt.Equal(t0.Add(store.UnburiedDelay)) {
		t.Errorf("row: got %+v, want ready at %s", r, t0.Add(store.UnburiedDelay))
	}
	if s := f.row(jobs[1].ID).State; s != job.Done {
		t.Errorf("the done job is %s", s)
	}
	f.exec("ALTER TABLE away RENAME TO dead_jobs")
	s = f.at(t0.Add(store.UnburiedDelay))
	j := f.claimOf(s, 1).Jobs[0]
	if j.ID != jobs[0].ID || j.Attempt <= j.AttemptLimit(job.Policy{MaxAttempts: 20}) {
		t.Errorf("claimed after the repair: got job %d, attempt %d of %d, want job %d with its attempts used up", j.ID, j.Attempt, j.MaxAttempts, jobs[0].ID)
	}
	if fates, err = s.Finish(t.Context(), store.Finish{Writes: []job.Write{bury(j, job.ReasonMaxAttempts, "no")}}); err != nil {
		t.Fatal(err)
	}
	f.wantFates(fates, 1, store.Recorded)
	if n := len(f.dead()); n != 1 {
		t.Errorf("dead letters: got %d, want 1", n)
	}
}

func finishNoErrors(t *testing.T, f *fixture) {
	a, b := f.one(job.New{}), f.one(job.New{})
	f.exec("ALTER TABLE job_errors RENAME TO away")
	f.finish(store.Recorded, retry(a, time.Hour, "failed"), done(b, ""))
	f.wantState(a.ID, job.Ready)
	f.wantState(b.ID, job.Done)
}

func finishUncountFloor(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.exec("UPDATE jobs SET attempts = 0 WHERE id = ?", j.ID)
	f.finish(store.Recorded, job.Release(j))
	if n := f.row(j.ID).Attempts; n != 0 {
		t.Errorf("attempts: got %d, want 0", n)
	}
}

func finishNothing(t *testing.T, f *fixture) {
	fates, err := f.Finish(t.Context(), store.Finish{Owner: owner})
	if err != nil || len(fates) != 0 {
		t.Errorf("got %v, %v", fates, err)
	}
}

func finishOtherState(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	before := f.everything()
	for _, to := range []job.State{job.Running, job.Cancelled} {
		w := done(j, "")
		w.To = to
		if _, err := f.Finish(t.Context(), store.Finish{Writes: []job.Write{w}}); err == nil {
			t.Errorf("finish to %s went through", to)
		}
	}
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}
