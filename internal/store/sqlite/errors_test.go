package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"queued/internal/store"
	"queued/job"
)

func raw(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// Each error is one that SQLite really gives.
func TestKindOf_MapsSQLitesCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "queued.db")
	openAt(t, path, Options{})
	run := func(dsn string, statements ...string) error {
		db := raw(t, dsn)
		db.SetMaxOpenConns(1)
		for _, stmt := range statements {
			if _, err := db.ExecContext(t.Context(), stmt); err != nil {
				return err
			}
		}
		return nil
	}
	tests := []struct {
		name string
		err  func() error
		want error
	}{
		{"locked by another", func() error {
			db := raw(t, path)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO jobs (kind) VALUES ('k')"); err != nil {
				t.Fatal(err)
			}
			return errors.Join(run(path, "INSERT INTO jobs (kind) VALUES ('k')"), tx.Rollback())
		}, store.ErrConflict},
		{"key taken", func() error {
			return run(path, "INSERT INTO jobs (kind, idempotency_key) VALUES ('k', 'a')", "INSERT INTO jobs (kind, idempotency_key) VALUES ('k', 'a')")
		}, store.ErrDuplicate},
		{"id taken", func() error {
			return run(path, "INSERT INTO jobs (id, kind) VALUES (1000, 'k')", "INSERT INTO jobs (id, kind) VALUES (1000, 'k')")
		}, store.ErrDuplicate},
		{"counter taken", func() error {
			return run(path, "INSERT INTO counters (minute_at, owner, queue, kind) VALUES (1, 1, 'q', 'k'), (1, 1, 'q', 'k')")
		}, store.ErrDuplicate},
		{"check", func() error { return run(path, "INSERT INTO jobs (kind, payload) VALUES ('k', '{')") }, store.ErrData},
		{"null", func() error { return run(path, "INSERT INTO jobs (kind) VALUES (NULL)") }, store.ErrData},
		{"type of a key", func() error {
			return run(path, "INSERT INTO leases (token, owner, expires_at, job_ids) VALUES ('x', 1, 1, '')")
		}, store.ErrData},
		{"too long", func() error { return run(path, "INSERT INTO jobs (kind, result) VALUES ('k', zeroblob(2000000000))") }, store.ErrData},
		{"no table", func() error { return run(path, "INSERT INTO missing (kind) VALUES ('k')") }, store.ErrSchema},
		{"no column", func() error { return run(path, "INSERT INTO jobs (missing) VALUES ('k')") }, store.ErrSchema},
		{"no index", func() error { return run(path, "SELECT id FROM jobs INDEXED BY missing") }, store.ErrSchema},
		{"read-only", func() error { return run("file:"+path+"?mode=ro", "INSERT INTO jobs (kind) VALUES ('k')") }, store.ErrUnavailable},
		{"no directory", func() error { return run(filepath.Join(dir, "missing", "x.db"), "SELECT 1") }, store.ErrUnavailable},
		{"full", func() error {
			return run(path, "PRAGMA max_page_count = 10", "INSERT INTO jobs (kind, result) VALUES ('k', zeroblob(1000000))")
		}, store.ErrUnavailable},
		{"of another origin", func() error { return errors.New("x") }, nil},
	}
	for _, tt := range tests {
		err := tt.err()
		if err == nil {
			t.Errorf("%s: no error", tt.name)
		}
		if got := kindOf(err); got != tt.want { //nolint:errorlint // kindOf returns the sentinel itself
			t.Errorf("%s: got %v for %v, want %v", tt.name, got, err, tt.want)
		}
	}
}

func TestWrap_NamesOperationAndKind(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the daemon stops")
	cancel(cause)
	tests := []struct {
		ctx  context.Context
		err  error
		want error
		not  error
	}{
		{context.Background(), context.DeadlineExceeded, store.ErrUnavailable, context.DeadlineExceeded},
		{context.Background(), &lockError{context.DeadlineExceeded}, store.ErrUnavailable, store.ErrConflict},
		{gone, context.Canceled, cause, store.ErrUnavailable},
		{gone, &lockError{context.Canceled}, cause, store.ErrUnavailable},
		{gone, &lockError{errors.New("busy")}, cause, store.ErrUnavailable},
		{context.Background(), sql.ErrNoRows, store.ErrNotFound, sql.ErrNoRows},
		{context.Background(), job.ErrLeaseLost, job.ErrLeaseLost, store.ErrUnavailable},
		{gone, fmt.Errorf("x: %w", store.ErrState), store.ErrState, cause},
	}
	for _, tt := range tests {
		got := wrap(tt.ctx, "op", tt.err)
		if !errors.Is(got, tt.want) || errors.Is(got, tt.not) || !strings.HasPrefix(got.Error(), "op: ") {
			t.Errorf("wrap of %v: got %v, want %v and not %v", tt.err, got, tt.want, tt.not)
		}
	}
}

func TestEnqueue_OnAFullDiskIsUnavailableUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	put(t, s, job.New{Kind: "before"})
	limit := func(pages int) {
		t.Helper()
		c, err := s.db.get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.db.put(c, true)
		if _, err := c.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	large := job.New{Kind: "large", Payload: []byte(`"` + strings.Repeat("x", 500_000) + `"`)}
	limit(50)
	for range 3 { // SQLite has rolled back by itself; the next call must not suffer from it
		if _, err := s.Enqueue(t.Context(), []job.New{large}); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("enqueue: got %v, want ErrUnavailable", err)
		}
		limit(50)
	}
	if n := s.meter.Unavailable.Load(); n != 3 {
		t.Errorf("unavailable: counted %d, want 3", n)
	}
	limit(1 << 20)
	put(t, s, large)
	c, err := s.Claim(t.Context(), store.ClaimRequest{Owner: 1, Wants: []store.Want{{Queue: "default", Limit: 10}}})
	if err != nil || len(c.Jobs) != 2 {
		t.Errorf("claim: got %d jobs, %v, want 2", len(c.Jobs), err)
	}
}
