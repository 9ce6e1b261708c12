package storetest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var claimLaws = []law{
	{"Claim_WithNothingDueWritesNothing", claimNothing},
	{"Claim_TakesPriorityThenDueTimeThenID", claimOrder},
	{"Claim_IsNeverEarly", claimNeverEarly},
	{"Claim_MakesTheRowRunUnderTokenAndLease", claimWrites},
	{"Claim_TakesUpToTheLimitOfEachQueue", claimLimits},
	{"Claim_TakesFromTheWantedQueuesOnly", claimQueues},
	{"Claim_GivesABatchAcrossQueuesInRunOrder", claimAcrossQueues},
	{"Claim_TakesMaxClaimAtMost", claimMax},
	{"Claim_TokensArePositiveAndNeverTheSame", claimTokens},
	{"Claim_FindsDueJobsBehindManyScheduledOnes", claimBehindScheduled},
	{"Claim_FindsRowsCommittedBehindClaimedOnes", claimLateCommit},
	{"Claim_BadRowsComeWithTheReasonAndBlockNobody", claimBad},
	{"Claim_CountsAttemptsUpToTheColumnsEnd", claimAttempts},
	{"Claim_GivesExpiredJobsToo", claimExpired},
	{"Claim_CancelledTakesNothing", claimCancelled},
	{"Claim_ReleasedJobsKeepTheirPlace", claimReleased},
	{"Claim_RetriedJobsGoToTheirNewPlace", claimRetried},
}

func claimNothing(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Delay: time.Hour}, job.New{Kind: "k", Queue: "other"})
	before := f.everything()
	for range 3 {
		c := f.claim(10)
		if diff := cmp.Diff(store.Claimed{}, c); diff != "" {
			t.Errorf("claimed (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func claimOrder(t *testing.T, f *fixture) {
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	jobs := []job.New{
		{Kind: "5", Priority: 0, At: at(-9)},
		{Kind: "7", Priority: 0, At: at(0)},
		{Kind: "2", Priority: 5, At: at(0)},
		{Kind: "0", Priority: 9, At: at(0)},
		{Kind: "3", Priority: 1, At: at(-1)},
		{Kind: "6", Priority: 0, At: at(-9)}, // as due as the first, with a higher id
		{Kind: "1", Priority: 5, At: at(-1)},
		{Kind: "4", Priority: 1, At: at(0)},
	}
	s := f.at(at(-20))
	if _, err := s.Enqueue(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	s = f.at(t0)
	var got []string
	for _, limit := range []int{3, 1, 2, 500} {
		c := f.claimOf(s, limit)
		for _, j := range c.Jobs {
			got = append(got, j.Kind)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6", "7"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func claimNeverEarly(t *testing.T, f *fixture) {
	for _, due := range []time.Time{t0, t0.Add(time.Millisecond)} {
		got, err := f.at(t0.Add(-time.Hour)).Enqueue(t.Context(), []job.New{
			{Kind: "early", At: due, Priority: 9}, {Kind: "beside", At: due, Priority: 0}, {Kind: "due", At: t0.Add(-time.Minute), Priority: 0},
		})
		if err != nil {
			t.Fatal(err)
		}
		before := due.Add(-time.Millisecond)
		// When the claim has something else to take, and alone.
		if diff := cmp.Diff([]int64{got[2].ID}, idsOf(f.claimOf(f.at(before), 10).Jobs)); diff != "" {
			t.Errorf("claim 1 ms before the due time (-want +got):\n%s", diff)
		}
		if c := f.claimOf(f.at(before), 10); len(c.Jobs) != 0 {
			t.Errorf("claim 1 ms before the due time: got jobs %v", idsOf(c.Jobs))
		}
		if diff := cmp.Diff([]int64{got[0].ID, got[1].ID}, idsOf(f.claimOf(f.at(due), 10).Jobs)); diff != "" {
			t.Errorf("claim at the due time (-want +got):\n%s", diff)
		}
	}
}

func claimWrites(t *testing.T, f *fixture) {
	s := f.at(t0)
	got, err := s.Enqueue(t.Context(), []job.New{{Kind: "k"}, {Kind: "k"}, {Kind: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	c := f.claimOf(s, 2)
	if diff := cmp.Diff([]int64{got[0].ID, got[1].ID}, idsOf(c.Jobs)); diff != "" {
		t.Fatalf("claimed (-want +got):\n%s", diff)
	}
	for i, e := range got {
		r := f.row(e.ID)
		want := store.JobRow{ID: e.ID, Queue: "default", Kind: "k", State: job.Ready, AvailableAt: t0, CreatedAt: t0}
		if i < 2 {
			want.State, want.Attempts, want.ClaimedAt = job.Running, 1, &t0
		}
		if diff := cmp.Diff(want, r); diff != "" {
			t.Errorf("row of job %d (-want +got):\n%s", e.ID, diff)
		}
	}
	leases := f.dump("SELECT token, owner, job_ids FROM leases")
	if diff := cmp.Diff([]string{fmt.Sprintf("%d | %d | %s", c.Token, owner, store.EncodeIDs(idsOf(c.Jobs)))}, leases); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
	if n := f.int("SELECT COUNT(*) FROM leases WHERE expires_at = ?", t0.Add(lease)); n != 1 {
		t.Errorf("the lease does not end %s after the claim", lease)
	}
	for _, j := range c.Jobs {
		if j.Token != c.Token || j.Attempt != 1 {
			t.Errorf("job %d: got token %d, attempt %d, want %d, 1", j.ID, j.Token, j.Attempt, c.Token)
		}
	}
}

func claimLimits(t *testing.T, f *fixture) {
	for _, q := range []string{"a", "b"} {
		for range 3 {
			f.enqueue(job.New{Kind: "k", Queue: q})
		}
	}
	for _, tt := range []struct {
		wants []store.Want
		n     int
		more  bool
	}{
		{[]store.Want{{Queue: "a", Limit: 1}, {Queue: "b", Limit: 5}}, 4, true},
		{[]store.Want{{Queue: "a", Limit: 3}, {Queue: "b", Limit: 1}}, 2, false},
	} {
		c, err := f.Claim(t.Context(), store.ClaimRequest{Owner: owner, Lease: lease, Wants: tt.wants})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Jobs) != tt.n || c.More != tt.more {
			t.Errorf("claim %v: got %d jobs, more %t, want %d, %t", tt.wants, len(c.Jobs), c.More, tt.n, tt.more)
		}
	}
}

func claimQueues(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Queue: "a"}, job.New{Kind: "k", Queue: "b"}, job.New{Kind: "k", Queue: "ab"}, job.New{Kind: "k", Queue: "c"})
	c, err := f.Claim(t.Context(), request(10, "a", "c", "missing"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range c.Jobs {
		got = append(got, j.Queue)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"a", "c"}, got); diff != "" {
		t.Errorf("queues (-want +got):\n%s", diff)
	}
}

func claimAcrossQueues(t *testing.T, f *fixture) {
	f.enqueue(
		job.New{Kind: "2", Queue: "a", Priority: 1}, job.New{Kind: "1", Queue: "b", Priority: 5},
		job.New{Kind: "0", Queue: "a", Priority: 9}, job.New{Kind: "3", Queue: "b", Priority: 0},
	)
	c, err := f.Claim(t.Context(), request(10, "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range c.Jobs {
		got = append(got, j.Kind)
		if j.Token != c.Token {
			t.Errorf("job of queue %q: got token %d, want %d", j.Queue, j.Token, c.Token)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if n := f.int("SELECT COUNT(*) FROM leases"); n != 1 {
		t.Errorf("leases: got %d, want 1", n)
	}
}

func claimMax(t *testing.T, f *fixture) {
	jobs := make([]job.New, store.MaxClaim+7)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k"}
	}
	ids := f.enqueue(jobs...)
	first := f.claim(store.MaxClaim)
	second := f.claim(store.MaxClaim)
	if len(first.Jobs) != store.MaxClaim || !first.More || len(second.Jobs) != 7 || second.More {
		t.Errorf("claims: got %d (more %t) and %d (more %t), want %d (true) and 7 (false)",
			len(first.Jobs), first.More, len(second.Jobs), second.More, store.MaxClaim)
	}
	if diff := cmp.Diff(ids, append(idsOf(first.Jobs), idsOf(second.Jobs)...)); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
}

func claimTokens(t *testing.T, f *fixture) {
	seen := map[int64]bool{}
	for range 30 {
		f.enqueue(job.New{Kind: "k"})
		c := f.claim(1)
		if c.Token <= 0 || seen[c.Token] {
			t.Fatalf("token %d", c.Token)
		}
		seen[c.Token] = true
	}
}

func claimBehindScheduled(t *testing.T, f *fixture) {
	var jobs []job.New
	for i := range 1000 {
		jobs = append(jobs, job.New{Kind: "later", Priority: 9 - i%10, Delay: time.Hour})
	}
	f.enqueue(append(jobs, job.New{Kind: "now", Priority: 0})...)
	if c := f.claim(10); len(c.Jobs) != 1 || c.Jobs[0].Kind != "now" {
		t.Errorf("claim: got jobs %v, want the one that is due", idsOf(c.Jobs))
	}
}

// A producer that takes long to commit has the lower id and the earlier due time.
func claimLateCommit(t *testing.T, f *fixture) {
	// The ids of jobs that come late.
	late := f.enqueue(job.New{Kind: "k"}, job.New{Kind: "k"})
	f.exec("DELETE FROM jobs")
	f.enqueue(job.New{Kind: "k"}, job.New{Kind: "k"}, job.New{Kind: "k"})
	if c := f.claim(10); len(c.Jobs) != 3 {
		t.Fatalf("claim: got %d jobs, want 3", len(c.Jobs))
	}
	f.claim(10)
	f.insertRaw("late", cols{"id": late[0], "available_at": time.Now().Add(-time.Hour)})
	f.insertRaw("late", cols{"id": late[1], "available_at": time.Now().Add(-time.Second), "priority": 9})
	if f.db.Dialect == "mysql" { // SQLite has one writer: nobody can be overtaken there
		tx, err := f.db.SQL.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := tx.ExecContext(t.Context(), "INSERT INTO jobs (kind) VALUES ('slow')")
		if err != nil {
			t.Fatal(err)
		}
		slow, err := res.LastInsertId()
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, slow)
		fast := f.insertRaw("fast", nil)
		if got := idsOf(f.claim(10).Jobs); !slices.Contains(got, fast) || slices.Contains(got, slow) {
			t.Errorf("claimed beside the slow producer's %d: got %v, want %d in it", slow, got, fast)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	got := map[int64]bool{}
	for _, id := range late {
		if f.state(id) == job.Running {
			got[id] = true // found already
		}
	}
	f.soon("the late jobs are claimed", func() bool {
		for _, j := range f.claim(10).Jobs {
			got[j.ID] = true
		}
		return len(got) == len(late)
	})
	if diff := cmp.Diff(late, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("late jobs (-want +got):\n%s", diff)
	}
}

func claimBad(t *testing.T, f *fixture) {
	const here = "" // the row is as bad as an INSERT can make it
	tests := []struct {
		kind   string
		cols   cols
		update string
		want   string
	}{
		{"", nil, here, "kind"},
		{"mail ", nil, here, "kind"},
		{"tab\t", nil, here, "kind"},
		{"k", cols{"priority": 10}, here, "priority"},
		{"k", cols{"priority": -1}, here, "priority"},
		{"k", cols{"priority": 32767}, here, "priority"},
		{"k", cols{"priority": -32768}, here, "priority"},
		{"k", cols{"max_attempts": -1}, here, "max_attempts"},
		{"k", cols{"max_attempts": math.MaxInt32}, here, "max_attempts"},
		{"k", cols{"timeout_ms": -1}, here, "timeout_ms"},
		{"k", cols{"timeout_ms": math.MaxInt64}, here, "timeout_ms"},
		{"k", cols{"idempotency_key": strings.Repeat("é", 191)}, here, "idempotency_key"},
		{"k", cols{"idempotency_key": "a\x00b"}, here, "idempotency_key"},
		{"k", cols{"payload": `"` + strings.Repeat("x", job.MaxPayloadBytes-1) + `"`}, here, "payload"},
		{"k", nil, "attempts = -2147483648", "attempts"},
		{"k", nil, "attempts = -1", "attempts"},
		{"k", nil, "attempts = 2147483647", "attempts"},
	}
	if !f.d.ChecksJSON {
		for _, p := range []string{"", "{", "nope", strings.Repeat("[", 100_000)} {
			tests = append(tests, struct {
				kind   string
				cols   cols
				update string
				want   string
			}{"k", cols{"payload": p}, here, "payload"})
		}
	}
	for i, tt := range tests {
		// All in one queue, one behind the other: the next one must not be blocked.
		bad := f.insertRaw(tt.kind, tt.cols)
		if tt.update != "" {
			f.exec("UPDATE jobs SET "+tt.update+" WHERE id = ?", bad)
		}
		good := f.insertRaw("good", nil)
		var claimed []*job.Job
		f.soon(fmt.Sprintf("case %d: the bad job and the one behind it are claimed", i), func() bool {
			claimed = append(claimed, f.claim(10).Jobs...)
			return len(claimed) >= 2
		})
		slices.SortFunc(claimed, func(a, b *job.Job) int { return int(a.ID - b.ID) })
		if diff := cmp.Diff([]int64{bad, good}, idsOf(claimed)); diff != "" {
			t.Fatalf("case %d: jobs (-want +got):\n%s", i, diff)
		}
		if got := claimed[0].Bad; !strings.Contains(got, tt.want) {
			t.Errorf("case %d: bad: got %q, want the column %s", i, got, tt.want)
		}
		if got := claimed[1].Bad; got != "" {
			t.Errorf("case %d: the good job is bad: %s", i, got)
		}
		f.finish(store.Recorded, job.Refuse(claimed[0], job.ReasonBadRow, claimed[0].Bad), done(claimed[1], ""))
		f.wantState(bad, job.Dead)
	}
	for _, r := range f.dead() {
		if r.Reason != job.ReasonBadRow || r.Error == "" {
			t.Errorf("dead letter of job %d: got reason %q, error %q", r.JobID, r.Reason, r.Error)
		}
	}
}

func claimAttempts(t *testing.T, f *fixture) {
	id := f.insertRaw("k", nil)
	for want := 1; want <= 3; want++ {
		j := f.claim(1).Jobs[0]
		if j.Attempt != want {
			t.Errorf("attempt: got %d, want %d", j.Attempt, want)
		}
		f.finish(store.Recorded, retry(j, 0, "again"))
	}
	for _, tt := range []struct{ stored, want int64 }{{2147483645, 2147483646}, {2147483646, 2147483647}, {2147483647, 2147483647}} {
		f.exec("UPDATE jobs SET attempts = ? WHERE id = ?", tt.stored, id)
		j := f.claim(1).Jobs[0]
		if int64(j.Attempt) != tt.want || int64(f.row(id).Attempts) != tt.want {
			t.Errorf("attempt after %d: got %d, row %d, want %d", tt.stored, j.Attempt, f.row(id).Attempts, tt.want)
		}
		f.finish(store.Recorded, retry(j, 0, ""))
	}
}

func claimExpired(t *testing.T, f *fixture) {
	s := f.at(t0)
	if _, err := s.Enqueue(t.Context(), []job.New{{Kind: "k", ExpiresAt: t0.Add(-time.Second)}}); err != nil {
		t.Fatal(err)
	}
	c := f.claimOf(s, 1)
	if len(c.Jobs) != 1 || !c.Jobs[0].ExpiresAt.Equal(t0.Add(-time.Second)) {
		t.Errorf("claim: got %v, want the expired job", c.Jobs)
	}
}

func claimCancelled(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k"})
	before := f.everything()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := f.Claim(ctx, request(10))
	f.wantErr(err, context.Canceled)
	if len(c.Jobs) != 0 {
		t.Errorf("jobs: got %v", idsOf(c.Jobs))
	}
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

func claimReleased(t *testing.T, f *fixture) {
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	got, err := f.at(at(-60)).Enqueue(t.Context(), []job.New{{Kind: "k", At: at(-30)}, {Kind: "k", At: at(-20)}, {Kind: "k", At: at(-10)}})
	if err != nil {
		t.Fatal(err)
	}
	c := f.claimOf(f.at(t0), 2)
	f.finish(store.Recorded, job.Release(c.Jobs[1]), job.Release(c.Jobs[0]))
	c = f.claimOf(f.at(t0), 10)
	if diff := cmp.Diff([]int64{got[0].ID, got[1].ID, got[2].ID}, idsOf(c.Jobs)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for _, j := range c.Jobs {
		if j.Attempt != 1 {
			t.Errorf("attempt of job %d: got %d, want 1", j.ID, j.Attempt)
		}
	}
}

// A retried job has the lowest id, and must not come before those that are due
// earlier for it.
func claimRetried(t *testing.T, f *fixture) {
	s := f.at(t0)
	got, err := s.Enqueue(t.Context(), []job.New{{Kind: "k"}, {Kind: "k", Delay: time.Second}, {Kind: "k", Delay: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	j := f.claimOf(s, 1).Jobs[0]
	if _, err := s.Finish(t.Context(), store.Finish{Writes: []job.Write{retry(j, 2*time.Second, "no")}}); err != nil {
		t.Fatal(err)
	}
	c := f.claimOf(f.at(t0.Add(10*time.Second)), 10)
	if diff := cmp.Diff([]int64{got[1].ID, got[0].ID, got[2].ID}, idsOf(c.Jobs)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
