package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"queued/internal/store"
	"queued/job"
)

// fixture is a database of one test and a store on it.
type fixture struct {
	store.Store
	t  testing.TB
	d  Driver
	db Database
}

// newFixture opens a store on a fresh database and brings up its schema.
func newFixture(tb testing.TB, d Driver) *fixture {
	tb.Helper()
	f := newEmptyFixture(tb, d)
	if err := f.MigrateUp(tb.Context(), 0, nil); err != nil {
		tb.Fatalf("migrate up: %v", err)
	}
	return f
}

func newEmptyFixture(tb testing.TB, d Driver) *fixture {
	tb.Helper()
	f := &fixture{t: tb, d: d, db: d.Open(tb)}
	f.Store = f.reopen()
	return f
}

// reopen opens a second store on the same data, as another process would.
func (f *fixture) reopen() store.Store {
	f.t.Helper()
	return f.at(time.Time{})
}

// at opens a store whose clock stands still at now.
func (f *fixture) at(now time.Time) store.Store {
	f.t.Helper()
	s, err := f.db.Store(now)
	if err != nil {
		f.t.Fatalf("open store: %v", err)
	}
	f.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.t.Errorf("close store: %v", err)
		}
	})
	return s
}

// exec runs raw SQL as another program would and returns how many rows it changed.
// A "?" stands for an argument in both dialects; times are converted.
func (f *fixture) exec(query string, args ...any) int64 {
	f.t.Helper()
	n, err := f.tryExec(query, args...)
	if err != nil {
		f.t.Fatalf("exec %s: %v", query, err)
	}
	return n
}

func (f *fixture) tryExec(query string, args ...any) (int64, error) {
	query, args = f.bind(query, args)
	res, err := f.db.SQL.ExecContext(context.WithoutCancel(f.t.Context()), query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// bind writes times the way each dialect has them.
func (f *fixture) bind(query string, args []any) (string, []any) {
	var b strings.Builder
	args = slices.Clone(args)
	for i := range args {
		before, after, _ := strings.Cut(query, "?")
		b.WriteString(before)
		if t, ok := args[i].(time.Time); ok {
			args[i] = t.UnixMilli()
			b.WriteString(f.dialect("FROM_UNIXTIME(? * 0.001)", "?"))
		} else {
			b.WriteByte('?')
		}
		query = after
	}
	return b.String() + query, args
}

func (f *fixture) dialect(mysql, sqlite string) string {
	if f.db.Dialect == "sqlite" {
		return sqlite
	}
	return mysql
}

// int reads one integer with raw SQL; NULL is 0.
func (f *fixture) int(query string, args ...any) int64 {
	f.t.Helper()
	query, args = f.bind(query, args)
	var n sql.NullInt64
	if err := f.db.SQL.QueryRowContext(f.t.Context(), query, args...).Scan(&n); err != nil {
		f.t.Fatalf("query %s: %v", query, err)
	}
	return n.Int64
}

// dump reads rows with raw SQL, one line each.
func (f *fixture) dump(query string, args ...any) []string {
	f.t.Helper()
	query, args = f.bind(query, args)
	rows, err := f.db.SQL.QueryContext(f.t.Context(), query, args...)
	if err != nil {
		f.t.Fatalf("query %s: %v", query, err)
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil {
		f.t.Fatal(err)
	}
	var lines []string
	for rows.Next() {
		vals := make([]sql.NullString, len(cols))
		dest := make([]any, len(cols))
		for i := range vals {
			dest[i] = &vals[i]
		}
		if err := rows.Scan(dest...); err != nil {
			f.t.Fatal(err)
		}
		var b strings.Builder
		for i, v := range vals {
			if i > 0 {
				b.WriteString(" | ")
			}
			if v.Valid {
				b.WriteString(v.String)
			} else {
				b.WriteString("NULL")
			}
		}
		lines = append(lines, b.String())
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	return lines
}

// cols are the columns of a raw INSERT.
type cols map[string]any

// insertRaw puts a job in with a plain INSERT and returns its id.
func (f *fixture) insertRaw(kind string, c cols) int64 {
	f.t.Helper()
	id, err := f.tryInsertRaw(kind, c)
	if err != nil {
		f.t.Fatalf("plain insert of kind %q, %v: %v", kind, c, err)
	}
	return id
}

func (f *fixture) tryInsertRaw(kind string, c cols) (int64, error) {
	names, args := []string{"kind"}, []any{kind}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		names, args = append(names, name), append(args, c[name])
	}
	query, args := f.bind("INSERT INTO jobs ("+strings.Join(names, ", ")+") VALUES (?"+strings.Repeat(", ?", len(args)-1)+")", args)
	res, err := f.db.SQL.ExecContext(context.WithoutCancel(f.t.Context()), query, args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// timeColumns are all columns that hold times, by table.
var timeColumns = map[string][]string{
	"jobs":       {"available_at", "expires_at", "created_at", "claimed_at", "finished_at"},
	"dead_jobs":  {"available_at", "expires_at", "created_at", "died_at", "replayed_at"},
	"job_errors": {"failed_at"},
	"leases":     {"expires_at"},
	"counters":   {"minute_at"},
	"daemons":    {"started_at", "alive_till"},
}

// advance lets time pass: every stored time moves back by d. The store is opened
// anew, since it may remember up to which due time it has claimed all jobs.
func (f *fixture) advance(d time.Duration) {
	f.t.Helper()
	f.shift(d)
	f.Store = f.reopen()
}

func (f *fixture) shift(d time.Duration) {
	f.t.Helper()
	for table, columns := range timeColumns {
		var set []string
		for _, c := range columns {
			// Times of 1970 stand for none.
			set = append(set, fmt.Sprintf(f.dialect(
				"%[1]s = CASE WHEN %[1]s < '1971-01-01' THEN %[1]s ELSE %[1]s - INTERVAL %[2]d MICROSECOND END",
				"%[1]s = %[1]s - %[3]d"), c, d.Microseconds(), d.Milliseconds()))
		}
		// In the order of the key, so that a unique one is free when the next row takes it.
		order := ""
		if f.db.Dialect == "mysql" && table == "counters" {
			order = " ORDER BY minute_at"
		}
		f.exec("UPDATE " + table + " SET " + strings.Join(set, ", ") + order)
	}
}

// enqueue puts jobs in through the store and returns their ids.
func (f *fixture) enqueue(jobs ...job.New) []int64 {
	f.t.Helper()
	var ids []int64
	for part := range slices.Chunk(jobs, 1000) {
		out, err := f.Enqueue(f.t.Context(), part)
		if err != nil {
			f.t.Fatalf("enqueue: %v", err)
		}
		for i, e := range out {
			if !e.New {
				f.t.Fatalf("enqueue: %+v is not new", part[i])
			}
			ids = append(ids, e.ID)
		}
	}
	return ids
}

const (
	owner  = 4711
	lease  = 30 * time.Second
	grace  = 5 * time.Second
	queueA = job.DefaultQueue
)

// claim takes up to limit due jobs of the default queue.
func (f *fixture) claim(limit int) store.Claimed {
	f.t.Helper()
	return f.claimOf(f.Store, limit)
}

func (f *fixture) claimOf(s store.Store, limit int) store.Claimed {
	f.t.Helper()
	c, err := s.Claim(f.t.Context(), request(limit))
	if err != nil {
		f.t.Fatalf("claim: %v", err)
	}
	return c
}

func request(limit int, queues ...string) store.ClaimRequest {
	if len(queues) == 0 {
		queues = []string{queueA}
	}
	req := store.ClaimRequest{Owner: owner, Lease: lease}
	for _, q := range queues {
		req.Wants = append(req.Wants, store.Want{Queue: q, Limit: limit})
	}
	return req
}

// one enqueues a job, claims it and returns it.
func (f *fixture) one(n job.New) *job.Job {
	f.t.Helper()
	if n.Kind == "" {
		n.Kind = "k"
	}
	id := f.enqueue(n)[0]
	c := f.claim(1)
	if len(c.Jobs) != 1 || c.Jobs[0].ID != id {
		f.t.Fatalf("claim: got jobs %v, want [%d]", idsOf(c.Jobs), id)
	}
	return c.Jobs[0]
}

// finish writes outcomes and checks their fates.
func (f *fixture) finish(want store.Fate, writes ...job.Write) {
	f.t.Helper()
	fates, err := f.Finish(f.t.Context(), store.Finish{Writes: writes, Owner: owner})
	if err != nil {
		f.t.Fatalf("finish: %v", err)
	}
	f.wantFates(fates, len(writes), want)
}

func (f *fixture) wantFates(got []store.Fate, n int, want store.Fate) {
	f.t.Helper()
	if len(got) != n {
		f.t.Fatalf("fates: got %d, want %d", len(got), n)
	}
	for i, fate := range got {
		if fate != want {
			f.t.Errorf("fate %d: got %s, want %s", i, fateName(fate), fateName(want))
		}
	}
}

func fateName(f store.Fate) string {
	switch f {
	case store.Recorded:
		return "Recorded"
	case store.LeaseLost:
		return "LeaseLost"
	case store.NotBuried:
		return "NotBuried"
	}
	return fmt.Sprintf("Fate(%d)", f)
}

// done, retry and bury are the three ways a run ends.
func done(j *job.Job, result string) job.Write {
	return job.Write{ID: j.ID, Token: j.Token, Attempt: j.Attempt, Queue: j.Queue, Kind: j.Kind, JobKey: j.JobKey(), To: job.Done, Result: result}
}

func retry(j *job.Job, delay time.Duration, msg string) job.Write {
	w := done(j, "")
	w.To, w.Delay, w.Error = job.Ready, delay, msg
	return w
}

func bury(j *job.Job, reason, msg string) job.Write {
	w := done(j, "")
	w.To, w.Reason, w.Error = job.Dead, reason, msg
	return w
}

func idsOf(jobs []*job.Job) []int64 {
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return ids
}

// row reads a job.
func (f *fixture) row(id int64) store.JobRow {
	f.t.Helper()
	r, err := f.GetJob(f.t.Context(), id)
	if err != nil {
		f.t.Fatalf("get job: %v", err)
	}
	return r
}

// state is where a job stands: its row's state, or Dead; "" if it is nowhere.
func (f *fixture) state(id int64) job.State {
	f.t.Helper()
	r, err := f.GetJob(f.t.Context(), id)
	switch {
	case err == nil:
		return r.State
	case !errors.Is(err, store.ErrNotFound):
		f.t.Fatalf("get job: %v", err)
	}
	if f.int("SELECT COUNT(*) FROM dead_jobs WHERE job_id = ?", id) > 0 {
		return job.Dead
	}
	return ""
}

func (f *fixture) wantState(id int64, want job.State) {
	f.t.Helper()
	if got := f.state(id); got != want {
		f.t.Errorf("state of job %d: got %q, want %q", id, got, want)
	}
}

// dead reads all dead letters, newest first.
func (f *fixture) dead() []store.DeadRow {
	f.t.Helper()
	list, err := f.ListDead(f.t.Context(), store.DeadFilter{Limit: 1000})
	if err != nil {
		f.t.Fatalf("list dead: %v", err)
	}
	return list
}

// everything is the content of all tables but times that renewals move, to show
// that a call has written nothing.
func (f *fixture) everything() []string {
	f.t.Helper()
	var lines []string
	for _, table := range slices.Sorted(maps.Keys(timeColumns)) {
		for _, l := range f.dump("SELECT * FROM " + table + " ORDER BY 1") {
			lines = append(lines, table+": "+l)
		}
	}
	return lines
}

// wantErr checks an error's kind.
func (f *fixture) wantErr(err, want error) {
	f.t.Helper()
	if !errors.Is(err, want) {
		f.t.Errorf("error: got %v, want %v", err, want)
	}
}

// parallel runs fn n times at once, each on a store of its own, as processes would.
func (f *fixture) parallel(n int, fn func(i int, s store.Store) error) {
	f.t.Helper()
	var g errgroup.Group
	for i := range n {
		s := f.reopen()
		g.Go(func() error {
			if err := fn(i, s); err != nil {
				return fmt.Errorf("process %d: %w", i, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// soon waits for what the contract promises within seconds.
func (f *fixture) soon(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(40 * time.Second); !ok(); {
		if time.Now().After(end) {
			f.t.Fatalf("not within 40 s: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// wantSet compares without order.
func wantSet(t *testing.T, what string, got []int64, want ...int64) {
	t.Helper()
	got = slices.Sorted(slices.Values(got))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
