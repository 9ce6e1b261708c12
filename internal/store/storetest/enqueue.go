package storetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var enqueueLaws = []law{
	{"Enqueue_TellsTheFateOfEachJobInOrder", enqueueFates},
	{"Enqueue_OfNoJobsIsNoError", enqueueNone},
	{"Enqueue_AKeyInAnyStateOfJobsBlocksADeadOneDoesNot", enqueueKeyStates},
	{"Enqueue_EveryFieldArrivesAtTheClaim", enqueueFields},
	{"Enqueue_WithoutFieldsGetsTheDefaults", enqueueDefaults},
	{"Enqueue_DelayCountsFromTheStoresClock", enqueueDelay},
	{"Enqueue_ManyJobsGetRisingIDs", enqueueMany},
	{"Enqueue_IsAllOrNothing", enqueueAtomic},
	{"Enqueue_CancelledWritesNothing", enqueueCancelled},
	{"Enqueue_PayloadsOfAnySizeAndCharacterSurvive", enqueuePayloads},
	{"Enqueue_IdentifiersAreByteExact", enqueueByteExact},
	{"Enqueue_OneKeyOfManyEnqueuersIsNewOnce", enqueueRace},
	{"PlainInsert_OfAKindIsACompleteEnqueue", plainInsert},
	{"PlainInsert_OfATakenKeyIsRefused", plainInsertDuplicate},
	{"PlainInsert_CountsWhenItIsCommitted", plainInsertTx},
	{"PlainInsert_OfBrokenJSONIsRefusedWhereTheServerChecks", plainInsertJSON},
}

// t0 is the time at which clocks stand still in tests: whole milliseconds within
// what a TIMESTAMP can hold.
var t0 = time.Date(2031, time.March, 30, 1, 30, 0, 123e6, time.UTC)

func enqueueFates(t *testing.T, f *fixture) {
	f.enqueue(job.New{Kind: "k", Key: "there"})
	got, err := f.Enqueue(t.Context(), []job.New{
		{Kind: "k", Key: "a"}, {Kind: "k"}, {Kind: "k", Key: "there"}, {Kind: "other", Key: "a"}, {Kind: "k"}, {Kind: "k", Key: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var isNew []bool
	for _, e := range got {
		isNew = append(isNew, e.New)
	}
	if diff := cmp.Diff([]bool{true, true, false, false, true, true}, isNew); diff != "" {
		t.Errorf("new (-want +got):\n%s", diff)
	}
	for i, key := range map[int]string{0: "a", 2: "there", 3: "a", 5: "b"} {
		if want := f.int("SELECT id FROM jobs WHERE idempotency_key = ?", key); got[i].ID != want {
			t.Errorf("id of job %d: got %d, want %d, which has key %q", i, got[i].ID, want, key)
		}
	}
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 5 {
		t.Errorf("rows: got %d, want 5", n)
	}
}

func enqueueNone(t *testing.T, f *fixture) {
	got, err := f.Enqueue(t.Context(), nil)
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func enqueueKeyStates(t *testing.T, f *fixture) {
	again := func(key string) store.Enqueued {
		t.Helper()
		got, err := f.Enqueue(t.Context(), []job.New{{Kind: "k", Key: key}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	blocked := func(key string, id int64) {
		t.Helper()
		if got, want := again(key), (store.Enqueued{ID: id}); got != want {
			t.Errorf("key of a %s job: got %+v, want %+v", f.state(id), got, want)
		}
	}
	ready := f.enqueue(job.New{Kind: "k", Key: "ready", Delay: time.Hour})[0]
	blocked("ready", ready)
	if err := f.CancelJob(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
	blocked("ready", ready)

	j := f.one(job.New{Key: "done"})
	blocked("done", j.ID)
	f.finish(store.Recorded, done(j, ""))
	blocked("done", j.ID)

	j = f.one(job.New{Key: "dead"})
	f.finish(store.Recorded, bury(j, job.ReasonPermanent, "no"))
	if got := again("dead"); !got.New || got.ID == j.ID {
		t.Errorf("key of a dead letter: got %+v, want a new job", got)
	}
}

func enqueueFields(t *testing.T, f *fixture) {
	due, expires := t0.Add(-time.Hour), t0.Add(time.Hour)
	in := job.New{
		Kind: "mail", Queue: "bulk", Key: "order-17", Payload: []byte(`{"to": "x@example.com"}`), Priority: 7,
		MaxAttempts: 1000, Timeout: 7 * 24 * time.Hour, At: due, ExpiresAt: expires,
	}
	s := f.at(t0)
	got, err := s.Enqueue(t.Context(), []job.New{in})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.at(t0.Add(time.Second)).Claim(t.Context(), request(1, "bulk"))
	if err != nil || len(c.Jobs) != 1 {
		t.Fatalf("claim: %v, %v", c, err)
	}
	want := &job.Job{
		ID: got[0].ID, Queue: "bulk", Kind: "mail", Key: "order-17", Payload: c.Jobs[0].Payload, Priority: 7, Attempt: 1,
		MaxAttempts: 1000, Timeout: 7 * 24 * time.Hour, AvailableAt: due, CreatedAt: t0, ExpiresAt: expires,
		ClaimedAt: t0.Add(time.Second), Token: c.Token,
	}
	if diff := cmp.Diff(want, c.Jobs[0]); diff != "" {
		t.Errorf("claimed job (-want +got):\n%s", diff)
	}
	wantJSON(t, c.Jobs[0].Payload, `{"to": "x@example.com"}`)
}

func enqueueDefaults(t *testing.T, f *fixture) {
	s := f.at(t0)
	got, err := s.Enqueue(t.Context(), []job.New{{Kind: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	c := f.claimOf(s, 10)
	want := []*job.Job{{
		ID: got[0].ID, Queue: "default", Kind: "k", Payload: []byte("{}"), Attempt: 1, AvailableAt: t0, CreatedAt: t0, ClaimedAt: t0, Token: c.Token,
	}}
	if diff := cmp.Diff(want, c.Jobs); diff != "" {
		t.Errorf("claimed jobs (-want +got):\n%s", diff)
	}
}

func enqueueDelay(t *testing.T, f *fixture) {
	ms := time.Millisecond
	got, err := f.at(t0).Enqueue(t.Context(), []job.New{
		{Kind: "k", Delay: ms},
		{Kind: "k", Delay: 36 * time.Hour},
		{Kind: "k", Delay: 1},
		{Kind: "k", Delay: ms + 1},
		{Kind: "k", At: t0.Add(5 * ms)},
		{Kind: "k", At: t0.Add(5*ms + 1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	// What is finer than a millisecond is rounded up: nothing is due too early.
	for i, want := range []time.Duration{ms, 36 * time.Hour, ms, 2 * ms, 5 * ms, 6 * ms} {
		if due := f.row(got[i].ID).AvailableAt.Sub(t0); due != want {
			t.Errorf("job %d: due after %s, want %s", i, due, want)
		}
	}
}

func enqueueMany(t *testing.T, f *fixture) {
	jobs := make([]job.New, 1100)
	for i := range jobs {
		jobs[i] = job.New{Kind: fmt.Sprintf("k%d", i)}
	}
	got, err := f.Enqueue(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, len(got))
	for i, e := range got {
		ids[i] = e.ID
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(jobs) {
		t.Fatalf("ids do not rise: %v", ids)
	}
	for _, i := range []int{0, 1, 99, 100, 101, 599, 1099} {
		if kind := f.row(ids[i]).Kind; kind != jobs[i].Kind {
			t.Errorf("job %d has id %d, which is of kind %q", i, ids[i], kind)
		}
	}
}

func enqueueAtomic(t *testing.T, f *fixture) {
	jobs := make([]job.New, 250)
	for i := range jobs {
		jobs[i] = job.New{Kind: "k"}
	}
	jobs[249].Kind = strings.Repeat("k", 65) // more than the column takes
	_, err := f.Enqueue(t.Context(), jobs)
	f.wantErr(err, store.ErrData)
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 0 {
		t.Errorf("rows after a refused batch: got %d, want 0", n)
	}
}

func enqueueCancelled(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Enqueue(ctx, []job.New{{Kind: "k"}})
	f.wantErr(err, context.Canceled)
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 0 {
		t.Errorf("rows: got %d, want 0", n)
	}
}

func enqueuePayloads(t *testing.T, f *fixture) {
	for _, payload := range []string{
		`{}`, `[]`, `null`, `"text"`, `0`, `true`, `{"a": [1, -2.5, 1e10, "\u0000", "\ud83d\ude00"]}`,
		`{"family": "👨‍👩‍👧", "last": "` + "\U0010FFFF" + `", "quote": "it's \"so\" \\ %s ?"}`,
		`"` + strings.Repeat("x", job.MaxPayloadBytes-2) + `"`,
		strings.Repeat("[", 30) + strings.Repeat("]", 30), // MariaDB takes no more than 32 levels
	} {
		j := f.one(job.New{Payload: []byte(payload)})
		if j.Bad != "" {
			t.Errorf("payload %.40s: bad: %s", payload, j.Bad)
		}
		wantJSON(t, j.Payload, payload)
		wantJSON(t, f.row(j.ID).Payload, payload)
	}
}

// wantJSON compares values: a JSON column orders keys and spaces its own way.
func wantJSON(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Errorf("payload %.60q: %v", got, err)
		return
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(g, w) { // cmp takes for ever over deep nesting
		t.Errorf("payload: got %.200s, want %.200s", got, want)
	}
}

func enqueueByteExact(t *testing.T, f *fixture) {
	names := []string{"a", "A", "á", "a\u0301", "ﬁ", "fi", "ss", "ß", "👨‍👩‍👧", "👨‍👩‍👦", "\U0010FFFF", "a b", "a  b", "a%", "a_", `a\`, `a'`, `a"`}
	if f.d.NoPad {
		names = append(names, "a ", "a  ")
	}
	var jobs []job.New
	for _, n := range names {
		jobs = append(jobs, job.New{Kind: n, Queue: n, Key: n})
	}
	ids := f.enqueue(jobs...) // all are new
	for i, n := range names {
		c, err := f.Claim(t.Context(), request(10, n))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Jobs) != 1 || c.Jobs[0].ID != ids[i] {
			t.Errorf("claim of queue %q: got jobs %v, want [%d]", n, idsOf(c.Jobs), ids[i])
			continue
		}
		if j := c.Jobs[0]; j.Queue != n || j.Kind != n || j.Key != n {
			t.Errorf("job of %q: got queue %q, kind %q, key %q", n, j.Queue, j.Kind, j.Key)
		}
		got, err := f.Enqueue(t.Context(), []job.New{{Kind: "k", Key: n}})
		if err != nil || got[0] != (store.Enqueued{ID: ids[i]}) {
			t.Errorf("key %q again: got %+v, %v, want the job %d", n, got, err, ids[i])
		}
	}
}

func enqueueRace(t *testing.T, f *fixture) {
	const enqueuers, keys = 6, 40
	news := make([][]store.Enqueued, enqueuers)
	f.parallel(enqueuers, func(i int, s store.Store) error {
		for k := range keys {
			// In differing orders, and beside another key, so that transactions meet.
			key := fmt.Sprintf("key-%d", (k*7+i*11)%keys)
			got, err := s.Enqueue(context.WithoutCancel(t.Context()), []job.New{{Kind: "k", Key: key}, {Kind: "k", Key: "twin-" + key}})
			if err != nil {
				return err
			}
			news[i] = append(news[i], got...)
		}
		return nil
	})
	isNew := map[int64]int{}
	for _, e := range slices.Concat(news...) {
		if isNew[e.ID] += 0; e.New {
			isNew[e.ID]++
		}
	}
	for id, n := range isNew {
		if n != 1 {
			t.Errorf("job %d was new %d times", id, n)
		}
	}
	if len(isNew) != 2*keys {
		t.Errorf("jobs: got %d, want %d", len(isNew), 2*keys)
	}
}

func plainInsert(t *testing.T, f *fixture) {
	before := time.Now()
	id := f.insertRaw("k", nil)
	after := time.Now()
	c := f.claim(10)
	if len(c.Jobs) != 1 || c.Jobs[0].ID != id {
		t.Fatalf("claim: got jobs %v, want [%d]", idsOf(c.Jobs), id)
	}
	j := c.Jobs[0]
	for _, at := range []time.Time{j.AvailableAt, j.CreatedAt} {
		if at.Before(before.Truncate(time.Millisecond)) || at.After(after) {
			t.Errorf("default time: got %s, want one from %s to %s", at, before, after)
		}
	}
	want := &job.Job{ID: id, Queue: "default", Kind: "k", Payload: []byte("{}"), Attempt: 1, AvailableAt: j.AvailableAt, CreatedAt: j.CreatedAt, ClaimedAt: j.ClaimedAt, Token: c.Token}
	if diff := cmp.Diff(want, j); diff != "" {
		t.Errorf("claimed job (-want +got):\n%s", diff)
	}
	if want := fmt.Sprintf("job:%d:%d", id, j.CreatedAt.UnixMilli()); j.JobKey() != want {
		t.Errorf("job key: got %q, want %q", j.JobKey(), want)
	}
}

func plainInsertDuplicate(t *testing.T, f *fixture) {
	f.insertRaw("k", cols{"idempotency_key": "K"})
	if _, err := f.tryInsertRaw("k", cols{"idempotency_key": "K"}); err == nil {
		t.Error("a second insert of the key went through")
	}
	f.insertRaw("k", cols{"idempotency_key": "k"})
	f.insertRaw("k", cols{"idempotency_key": nil})
	f.insertRaw("k", cols{"idempotency_key": nil})
}

func plainInsertTx(t *testing.T, f *fixture) {
	for _, tt := range []struct {
		name string
		end  func(*sql.Tx) error
		want int
	}{{"rollback", (*sql.Tx).Rollback, 0}, {"commit", (*sql.Tx).Commit, 1}} {
		tx, err := f.db.SQL.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO jobs (kind) VALUES ('k')"); err != nil {
			t.Error(errors.Join(err, tx.Rollback()))
			return
		}
		if c, err := f.Claim(t.Context(), request(10)); err != nil || len(c.Jobs) != 0 {
			t.Errorf("claim before the %s: got jobs %v, %v, want none", tt.name, idsOf(c.Jobs), err)
		}
		if err := tt.end(tx); err != nil {
			t.Fatal(err)
		}
		if c := f.claim(10); len(c.Jobs) != tt.want {
			t.Errorf("claim after the %s: got %d jobs, want %d", tt.name, len(c.Jobs), tt.want)
		}
	}
}

func plainInsertJSON(t *testing.T, f *fixture) {
	for _, payload := range []string{"{", "", "{'a': 1}", "nope", "{} {}"} {
		_, err := f.tryInsertRaw("k", cols{"payload": payload})
		if f.d.ChecksJSON == (err == nil) {
			t.Errorf("payload %q: got %v, want refused: %t", payload, err, f.d.ChecksJSON)
		}
	}
}
