package enqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite"

	"queued/internal/enqueue"
	"queued/job"
	"queued/migrations"
)

func openSQLite(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	steps, err := migrations.Load("sqlite", migrations.Vars{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		for _, statement := range step.Up {
			mustExec(t, db, statement)
		}
	}
	return db
}

func TestInsert_SQLiteWritesTheContract(t *testing.T) {
	db := openSQLite(t)
	now := time.UnixMilli(1_800_000_000_123)
	table := enqueue.Table{Dialect: enqueue.SQLite, Name: "jobs", Now: func() time.Time { return now }}
	_, err := table.Insert(t.Context(), db, []job.New{
		{Kind: "bare"},
		{
			Kind: "full", Queue: "mail", Key: "k", Payload: []byte(`{"a":1}`), Priority: 9, MaxAttempts: 3, Timeout: 1500 * time.Millisecond,
			At: time.UnixMilli(1_900_000_000_001).Add(time.Nanosecond), ExpiresAt: time.UnixMilli(1_900_000_005_000),
		},
		{Kind: "later", Delay: 2*time.Second + time.Nanosecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := dump(t, db, `SELECT id, queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms, available_at, expires_at, created_at FROM jobs ORDER BY id`)
	want := []string{
		"1 default bare <nil> <nil> 0 <nil> <nil> 1800000000123 <nil> 1800000000123",
		`2 mail full k {"a":1} 9 3 1500 1900000000002 1900000005000 1800000000123`,
		"3 default later <nil> <nil> 0 <nil> <nil> 1800000002124 <nil> 1800000000123",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}
}

func TestInsert_SQLiteSaysWhichAreNew(t *testing.T) {
	db := openSQLite(t)
	testWhichAreNew(t, db, enqueue.Table{Dialect: enqueue.SQLite, Name: "jobs"})
}

// testWhichAreNew holds for every dialect: more than one statement's worth, with
// duplicates of rows that were there, of rows of the same call, and keyless ones.
func testWhichAreNew(t *testing.T, db *sql.DB, table enqueue.Table) {
	t.Helper()
	ctx := t.Context()
	before, err := table.Insert(ctx, db, []job.New{{Kind: "k", Key: "key-7"}, {Kind: "k", Key: "key-120"}})
	if err != nil {
		t.Fatal(err)
	}
	var jobs []job.New
	for i := range 250 {
		jobs = append(jobs, job.New{Kind: "k", Key: fmt.Sprintf("key-%d", i)})
		if i%3 == 0 {
			jobs[i].Key = ""
		}
	}
	jobs[200].Key, jobs[202].Key = "key-199-b", "key-199-b"
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	got, err := table.Insert(ctx, tx, jobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(jobs) {
		t.Fatalf("got %d results for %d jobs", len(got), len(jobs))
	}
	ids := map[int64]bool{}
	for i, r := range got {
		wantNew := i != 7 && i != 202
		if i == 120 { // keyless
			wantNew = true
		}
		if r.New != wantNew {
			t.Errorf("job %d: got New %v, want %v", i, r.New, wantNew)
		}
		if r.New && ids[r.ID] {
			t.Errorf("job %d: id %d was given before", i, r.ID)
		}
		ids[r.ID] = true
		var key sql.NullString
		if err := db.QueryRowContext(ctx, "SELECT idempotency_key FROM jobs WHERE id = ?", r.ID).Scan(&key); err != nil {
			t.Errorf("job %d: read row %d: %v", i, r.ID, err)
		}
		if key.String != jobs[i].Key {
			t.Errorf("job %d: row %d has key %q, want %q", i, r.ID, key.String, jobs[i].Key)
		}
	}
	if got[7].ID != before[0].ID || got[202].ID != got[200].ID {
		t.Errorf("got ids %d and %d for duplicates, want %d and %d", got[7].ID, got[202].ID, before[0].ID, got[200].ID)
	}
}

func TestInsert_SQLiteDuplicatesInOneStatement(t *testing.T) {
	db := openSQLite(t)
	table := enqueue.Table{Dialect: enqueue.SQLite, Name: "main.jobs"}
	got, err := table.Insert(t.Context(), db, []job.New{
		{Kind: "k", Key: "a"},
		{Kind: "k"},
		{Kind: "k", Key: "a"},
		{Kind: "k", Key: "A"},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The refused row has used up id 3.
	want := []enqueue.Result{{ID: 1, New: true}, {ID: 2, New: true}, {ID: 1}, {ID: 4, New: true}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
}

func TestInsert_NothingIsNoStatement(t *testing.T) {
	got, err := enqueue.Table{Name: "jobs"}.Insert(t.Context(), nil, nil)
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v, want nothing", got, err)
	}
}

func TestInsert_RefusesNamesThatNeedThought(t *testing.T) {
	for _, name := range []string{"", ".", "jobs.", "a.b.c", "jo`bs", `jo"bs`, "jobs; DROP TABLE x", "jöbs"} {
		if _, err := (enqueue.Table{Name: name}).Insert(t.Context(), nil, []job.New{{Kind: "k"}}); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
}

// recorder answers every statement with err and keeps how many values it had.
type recorder struct {
	rows []int
	err  error
}

func (r *recorder) ExecContext(_ context.Context, _ string, args ...any) (sql.Result, error) {
	r.rows = append(r.rows, len(args)/7)
	return nil, r.err
}

func (r *recorder) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errors.New("not expected")
}

func TestInsert_OtherErrorsArePassedOn(t *testing.T) {
	broken := errors.New("broken")
	rec := &recorder{err: broken}
	_, err := enqueue.Table{Name: "jobs"}.Insert(t.Context(), rec, make([]job.New, 3))
	if !errors.Is(err, broken) || len(rec.rows) != 1 {
		t.Errorf("got %v after %d statements, want the driver's error after 1", err, len(rec.rows))
	}
}

func TestInsert_StatementsAreBounded(t *testing.T) {
	big := []byte(`"` + string(make([]byte, 400<<10)) + `"`)
	for _, c := range []struct {
		name string
		jobs []job.New
		want int // rows of the first statement
	}{
		{"rows", make([]job.New, 101), 100},
		{"bytes", []job.New{{Payload: big}, {Payload: big}, {Payload: big}}, 2},
		{"one that is larger", []job.New{{Payload: make([]byte, 2<<20)}, {}}, 1},
	} {
		rec := &recorder{err: errors.New("stop")}
		_, _ = enqueue.Table{Name: "jobs"}.Insert(t.Context(), rec, c.jobs)
		if len(rec.rows) != 1 || rec.rows[0] != c.want {
			t.Errorf("%s: got statements of %v rows, want the first of %d", c.name, rec.rows, c.want)
		}
	}
}

// dump reads rows as text, for comparison.
func dump(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	cols, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for rows.Next() {
		vals := make([]any, len(cols))
		ptrs := make([]any, len(cols))
		for i := range vals {
			ptrs[i] = &vals[i]
		}
		if err := rows.Scan(ptrs...); err != nil {
			t.Fatal(err)
		}
		line := ""
		for i, v := range vals {
			if b, ok := v.([]byte); ok {
				v = string(b)
			}
			if i > 0 {
				line += " "
			}
			line += fmt.Sprint(v)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
