package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var leaseLaws = []law{
	{"Renew_LetsTheLeaseEndLater", renewExtends},
	{"Renew_TellsWhichLeasesAreGone", renewLost},
	{"Renew_TwiceIsHarmless", renewTwice},
	{"Renew_OfAnExpiredLeaseThatNobodyReapedKeepsIt", renewExpired},
	{"Renew_TouchesTheNamedLeasesOnly", renewNamed},
	{"Verify_FindsEveryChangeFromOutside", verifyChanges},
	{"Verify_OfNothingIsNothing", verifyNothing},
}

// expired are the tokens of the leases that have ended by now, without a grace.
func (f *fixture) expired(s store.Store) []int64 {
	f.t.Helper()
	leases, err := s.Expired(f.t.Context(), 0, 100)
	if err != nil {
		f.t.Fatalf("expired: %v", err)
	}
	var tokens []int64
	for _, l := range leases {
		tokens = append(tokens, l.Token)
	}
	return tokens
}

func renewExtends(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	c := f.claimOf(f.at(t0), 1)
	later := t0.Add(lease - time.Millisecond)
	lost, err := f.at(later).Renew(t.Context(), owner, time.Minute, []int64{c.Token})
	if err != nil || len(lost) != 0 {
		t.Fatalf("renew: lost %v, %v", lost, err)
	}
	if got := f.expired(f.at(later.Add(time.Minute - time.Millisecond))); len(got) != 0 {
		t.Errorf("1 ms before the end: expired %v", got)
	}
	if diff := cmp.Diff([]int64{c.Token}, f.expired(f.at(later.Add(time.Minute)))); diff != "" {
		t.Errorf("at the end: expired (-want +got):\n%s", diff)
	}
}

func renewLost(t *testing.T, f *fixture) {
	var tokens []int64
	for range 3 {
		tokens = append(tokens, f.one(job.New{}).Token)
	}
	if _, err := f.Finish(t.Context(), store.Finish{Settled: tokens[1:2]}); err != nil {
		t.Fatal(err)
	}
	lost, err := f.Renew(t.Context(), owner, lease, []int64{tokens[0], 12345, tokens[1], tokens[2]})
	if err != nil {
		t.Fatal(err)
	}
	wantSet(t, "lost", lost, 12345, tokens[1])

	// Nobody renews the lease of another process.
	lost, err = f.Renew(t.Context(), owner+1, lease, tokens[:1])
	if err != nil {
		t.Fatal(err)
	}
	wantSet(t, "lost for another owner", lost, tokens[0])

	if lost, err := f.Renew(t.Context(), owner, lease, nil); err != nil || len(lost) != 0 {
		t.Errorf("renew of none: lost %v, %v", lost, err)
	}
}

// A renewal within the same millisecond changes no time, and is none the less no
// lost lease.
func renewTwice(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", At: t0})
	s := f.at(t0)
	c := f.claimOf(s, 1)
	for range 3 {
		if lost, err := s.Renew(t.Context(), owner, lease, []int64{c.Token}); err != nil || len(lost) != 0 {
			t.Errorf("renew: lost %v, %v", lost, err)
		}
	}
}

func renewExpired(t *testing.T, f *fixture) {
	j := f.one(job.New{})
	f.advance(time.Hour)
	if diff := cmp.Diff([]int64{j.Token}, f.expired(f.Store)); diff != "" {
		t.Fatalf("expired (-want +got):\n%s", diff)
	}
	if lost, err := f.Renew(t.Context(), owner, lease, []int64{j.Token}); err != nil || len(lost) != 0 {
		t.Errorf("renew: lost %v, %v", lost, err)
	}
	if got := f.expired(f.Store); len(got) != 0 {
		t.Errorf("expired after the renewal: %v", got)
	}
	f.finish(store.Recorded, done(j, ""))
}

func renewNamed(t *testing.T, f *fixture) {
	a, b := f.one(job.New{}), f.one(job.New{})
	f.advance(lease - time.Second)
	if _, err := f.Renew(t.Context(), owner, lease, []int64{a.Token}); err != nil {
		t.Fatal(err)
	}
	f.advance(2 * time.Second)
	if diff := cmp.Diff([]int64{b.Token}, f.expired(f.Store)); diff != "" {
		t.Errorf("expired (-want +got):\n%s", diff)
	}
}

func verifyChanges(t *testing.T, f *fixture) {
	var held []store.Held
	hold := func() (*job.Job, store.Held) {
		j := f.one(job.New{})
		h := store.Held{ID: j.ID, Token: j.Token}
		held = append(held, h)
		return j, h
	}
	_, kept := hold()
	ended, endedHeld := hold()
	cancelled, cancelledHeld := hold()
	deleted, deletedHeld := hold()
	edited, editedHeld := hold()
	_, keptToo := hold()
	retaken, retakenHeld := hold()

	check := func(when string, want ...store.Held) {
		t.Helper()
		lost, err := f.Verify(t.Context(), held)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, lost); diff != "" {
			t.Errorf("%s: lost (-want +got):\n%s", when, diff)
		}
	}
	check("at first")
	f.finish(store.Recorded, done(ended, ""))
	if err := f.CancelJob(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	f.exec("DELETE FROM jobs WHERE id = ?", deleted.ID)
	f.exec("UPDATE jobs SET token = token - 1 WHERE id = ?", edited.ID)
	f.finish(store.Recorded, job.Release(retaken))
	check("after the changes", endedHeld, cancelledHeld, deletedHeld, editedHeld, retakenHeld)
	f.soon("the released job is claimed again", func() bool { return len(f.claim(1).Jobs) == 1 })
	check("after the other claim", endedHeld, cancelledHeld, deletedHeld, editedHeld, retakenHeld)
	held = []store.Held{keptToo, {ID: kept.ID, Token: keptToo.Token}, kept}
	check("with another's token", held[1])
}

func verifyNothing(t *testing.T, f *fixture) {
	if lost, err := f.Verify(t.Context(), nil); err != nil || len(lost) != 0 {
		t.Errorf("got %v, %v", lost, err)
	}
}
