package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var controlLaws = []law{
	{"RetryJob_MakesAScheduledJobDueAndKeepsItsAttempts", retryScheduled},
	{"RetryJob_LeavesADueJobAtItsPlace", retryDue},
	{"RetryJob_MakesACancelledJobReadyAfresh", retryCancelled},
	{"RetryJob_OfARunningDoneOrMissingJobIsRefused", retryRefused},
	{"CancelJob_EndsAReadyOrRunningJob", cancelEnds},
	{"CancelJob_OfAnEndedOrMissingJobIsRefused", cancelRefused},
	{"ReplayDead_PutsTheJobBackAfreshAndMarksTheDeadLetter", replayFresh},
	{"ReplayDead_OfAKeylessJobKeepsItsJobKey", replayKeyless},
	{"ReplayDead_CountsTheReplays", replayCounts},
	{"ReplayDead_IsDoneOnce", replayOnce},
	{"ReplayDead_OfATakenKeyIsErrDuplicateAndWritesNothing", replayDuplicate},
	{"DiscardDead_DeletesTheDeadLetter", discard},
}

func retryScheduled(t *testing.T, f *fixture) {
	s := f.at(t0)
	f.enqueue(job.New{Kind: "k", At: t0})
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{retry(j, time.Hour, "failed")}}); err != nil {
		t.Fatal(err)
	}
	now := t0.Add(time.Minute)
	if err := f.at(now).RetryJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if r := f.row(j.ID); r.State != job.Ready || !r.AvailableAt.Equal(now) || r.Attempts != 1 {
		t.Errorf("row: got %+v, want ready, due at %s, 1 attempt", r, now)
	}
}

func retryDue(t *testing.T, f *fixture) {
	id := f.enqueue(job.New{Kind: "k", At: t0})[0]
	for range 2 {
		if err := f.at(t0.Add(time.Hour)).RetryJob(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if r := f.row(id); r.State != job.Ready || !r.AvailableAt.Equal(t0) {
		t.Errorf("row: got %+v, want ready, due at %s", r, t0)
	}
}

func retryCancelled(t *testing.T, f *fixture) {
	j := f.one(job.New{At: time.Now().Add(-time.Hour)})
	if err := f.CancelJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	now := t0
	if err := f.at(now).RetryJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if r := f.row(j.ID); r.State != job.Ready || !r.AvailableAt.Equal(now) || r.Attempts != 0 || r.FinishedAt != nil {
		t.Errorf("row: got %+v, want ready, due at %s, no attempts", r, now)
	}
	if c := f.claimOf(f.at(now), 1); len(c.Jobs) != 1 || c.Jobs[0].Attempt != 1 {
		t.Errorf("claim: got %v", c.Jobs)
	}
}

func retryRefused(t *testing.T, f *fixture) {
	running, ended := f.one(job.New{}), f.one(job.New{})
	f.finish(store.Recorded, done(ended, ""))
	before := f.everything()
	f.wantErr(f.RetryJob(t.Context(), running.ID), store.ErrState)
	f.wantErr(f.RetryJob(t.Context(), ended.ID), store.ErrState)
	f.wantErr(f.RetryJob(t.Context(), 999_999), store.ErrNotFound)
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func cancelEnds(t *testing.T, f *fixture) {
	running := f.one(job.New{})
	ready := f.enqueue(job.New{Kind: "k"})[0]
	for _, id := range []int64{running.ID, ready} {
		if err := f.at(t0).CancelJob(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if r := f.row(id); r.State != job.Cancelled || r.FinishedAt == nil || !r.FinishedAt.Equal(t0) {
			t.Errorf("row: got %+v, want cancelled at %s", r, t0)
		}
	}
	if c := f.claim(10); len(c.Jobs) != 0 {
		t.Errorf("claim: got jobs %v", idsOf(c.Jobs))
	}
	lost, err := f.Verify(t.Context(), []store.Held{{ID: running.ID, Token: running.Token}})
	if err != nil || len(lost) != 1 {
		t.Errorf("verify: lost %v, %v, want the cancelled job", lost, err)
	}
}

func cancelRefused(t *testing.T, f *fixture) {
	ended := f.one(job.New{})
	f.finish(store.Recorded, done(ended, ""))
	cancelled := f.enqueue(job.New{Kind: "k"})[0]
	if err := f.CancelJob(t.Context(), cancelled); err != nil {
		t.Fatal(err)
	}
	before := f.everything()
	f.wantErr(f.CancelJob(t.Context(), ended.ID), store.ErrState)
	f.wantErr(f.CancelJob(t.Context(), cancelled), store.ErrState)
	f.wantErr(f.CancelJob(t.Context(), 999_999), store.ErrNotFound)
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func replayFresh(t *testing.T, f *fixture) {
	in := job.New{
		Kind: "mail", Key: "key", Payload: []byte(`{"to": "x"}`), Priority: 4, MaxAttempts: 3, Timeout: time.Second,
		At: t0.Add(-time.Hour), ExpiresAt: t0.Add(-time.Minute),
	}
	if _, err := f.at(t0.Add(-2*time.Hour)).Enqueue(t.Context(), []job.New{in}); err != nil {
		t.Fatal(err)
	}
	s := f.at(t0)
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{bury(j, job.ReasonExpired, "too late")}}); err != nil {
		t.Fatal(err)
	}
	dead := f.dead()[0]
	now := t0.Add(time.Hour)
	id, err := f.at(now).ReplayDead(t.Context(), dead.ID)
	if err != nil {
		t.Fatal(err)
	}
	if id == j.ID {
		t.Errorf("the new job has the old id %d", id)
	}
	c := f.claimOf(f.at(now), 1)
	if len(c.Jobs) != 1 {
		t.Fatalf("claim: got %d jobs, want the replayed one", len(c.Jobs))
	}
	want := &job.Job{
		ID: id, Queue: "default", Kind: "mail", Key: "key", Payload: c.Jobs[0].Payload, Priority: 4, Attempt: 1, MaxAttempts: 3, Timeout: time.Second,
		AvailableAt: now, CreatedAt: now, ClaimedAt: now, Replays: 1, Token: c.Token,
	}
	if diff := cmp.Diff(want, c.Jobs[0]); diff != "" {
		t.Errorf("replayed job (-want +got):\n%s", diff)
	}
	wantJSON(t, c.Jobs[0].Payload, `{"to": "x"}`)
	dead.ReplayedAt, dead.ReplayedJobID = &now, id
	if diff := cmp.Diff([]store.DeadRow{dead}, f.dead()); diff != "" {
		t.Errorf("dead letter (-want +got):\n%s", diff)
	}
}

// Marks of effects already done are kept by the job key, so it must not change.
func replayKeyless(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.finish(store.Recorded, bury(j, job.ReasonPermanent, "no"))
	f.advance(time.Hour)
	if _, err := f.ReplayDead(t.Context(), f.dead()[0].ID); err != nil {
		t.Fatal(err)
	}
	again := f.claim(1).Jobs[0]
	if again.JobKey() != j.JobKey() {
		t.Errorf("job key: got %q, want %q", again.JobKey(), j.JobKey())
	}
}

func replayCounts(t *testing.T, f *fixture) {
	j := f.one(job.New{Key: "key"})
	for want := 1; want <= 3; want++ {
		f.finish(store.Recorded, bury(j, job.ReasonPermanent, "no"))
		dead := f.dead()[0]
		if dead.Replays != want-1 {
			t.Errorf("replays of the dead letter: got %d, want %d", dead.Replays, want-1)
		}
		id, err := f.ReplayDead(t.Context(), dead.ID)
		if err != nil {
			t.Fatal(err)
		}
		if j = f.claim(1).Jobs[0]; j.ID != id || j.Replays != want || j.Attempt != 1 {
			t.Errorf("replayed job: got id %d, replays %d, attempt %d, want %d, %d, 1", j.ID, j.Replays, j.Attempt, id, want)
		}
	}
	if n := len(f.dead()); n != 3 {
		t.Errorf("dead letters: got %d, want 3", n)
	}
}

func replayOnce(t *testing.T, f *fixture) {
	f.finish(store.Recorded, bury(f.one(job.New{}), job.ReasonPermanent, "no"))
	dead := f.dead()[0].ID
	if _, err := f.ReplayDead(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	before := f.everything()
	_, err := f.ReplayDead(t.Context(), dead)
	f.wantErr(err, store.ErrState)
	_, err = f.ReplayDead(t.Context(), 999_999)
	f.wantErr(err, store.ErrNotFound)
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func replayDuplicate(t *testing.T, f *fixture) {
	f.finish(store.Recorded, bury(f.one(job.New{Key: "key"}), job.ReasonPermanent, "no"))
	second := f.one(job.New{Key: "key"})
	dead := f.dead()[0].ID
	before := f.everything()
	_, err := f.ReplayDead(t.Context(), dead)
	f.wantErr(err, store.ErrDuplicate)
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
	f.finish(store.Recorded, bury(second, job.ReasonPermanent, "no"))
	if _, err := f.ReplayDead(t.Context(), dead); err != nil {
		t.Errorf("once the key is free: %v", err)
	}
}

func discard(t *testing.T, f *fixture) {
	f.finish(store.Recorded, bury(f.one(job.New{Key: "a"}), job.ReasonPermanent, "no"))
	f.finish(store.Recorded, bury(f.one(job.New{Key: "b"}), job.ReasonPermanent, "no"))
	list := f.dead()
	if err := f.DiscardDead(t.Context(), list[0].ID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list[1:], f.dead()); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
	f.wantErr(f.DiscardDead(t.Context(), list[0].ID), store.ErrNotFound)
}
