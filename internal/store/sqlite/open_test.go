package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

// openAt opens a migrated store for a test.
func openAt(t *testing.T, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := s.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, jobs ...job.New) {
	t.Helper()
	if _, err := s.Enqueue(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
}

func TestOpen_WithoutItsDirectoryNamesIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "missing")
	_, err := Open(filepath.Join(dir, "queued.db"), Options{})
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no directory "+dir) {
		t.Errorf("got %v", err)
	}
}

func TestOpen_OfWhatIsNoFileIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Open(dir, Options{}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a directory: got %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "queued.db"), Options{}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("below a file: got %v", err)
	}
}

func TestOpen_OfAForeignFileIsErrSchemaAndLeavesItAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes.txt")
	text := []byte(strings.Repeat("These are my notes and no database. ", 100))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MigrateUp(t.Context(), 0, nil); !errors.Is(err, store.ErrSchema) {
		t.Errorf("migrate up: got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, text) {
		t.Error("the file has changed")
	}
}

func TestOpen_MakesFilesForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "queued.db"), Options{})
	put(t, s, job.New{Kind: "k"})
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %o", f.Name(), info.Mode().Perm()))
	}
	if diff := cmp.Diff([]string{"queued.db 600", "queued.db-shm 600", "queued.db-wal 600"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestOpen_KeepsTheModeThatAFileHas(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queued.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil { // for producers of a group
		t.Fatal(err)
	}
	s := openAt(t, path, Options{})
	put(t, s, job.New{Kind: "k"})
	for _, suffix := range []string{"", "-wal"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o660 {
			t.Errorf("%s: got mode %o, want 660", info.Name(), info.Mode().Perm())
		}
	}
}

func TestOpen_AnyNameIsTheNameOfTheFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a b.db", "100%.db", "%41.db", "q?mode=memory", "a#b", "a&b=c;d", "é 👍.db", ":memory:", "file:x.db", "a'b\"c.db", "x?_pragma=synchronous(OFF)"} {
		dir := t.TempDir()
		s := openAt(t, filepath.Join(dir, name), Options{})
		put(t, s, job.New{Kind: "k"})
		d, err := s.Describe(t.Context())
		if err != nil || d.Where != filepath.Join(dir, name) {
			t.Errorf("%q: described as %q, %v", name, d.Where, err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasPrefix(filepath.Base(f), name) {
				t.Errorf("%q made the file %q", name, f)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 && len(files) != 3 {
			t.Errorf("%q: %v, %v", name, info, err)
		}
	}
}

func TestOpen_EveryConnectionHasItsSettings(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "queued.db"), Options{})
	for name, p := range map[string]*pool{"db": s.db, "lease": s.lease, "reads": s.reads} {
		for range cap(p.slots) {
			c, err := p.get(t.Context()) // given back at the end: each is another one
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.put(c, true) })
			for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "100", "journal_size_limit": "16777216"} {
				var got string
				if err := c.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s: %s is %s, want %s", name, pragma, got, want)
				}
			}
		}
	}
}

func TestClose_EndsTheStore(t *testing.T) {
	t.Parallel()
	s, err := Open(filepath.Join(t.TempDir(), "queued.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	c, err := s.reads.get(t.Context()) // in use while the store is closed
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.reads.put(c, true)
	for name, call := range map[string]func() error{
		"ping":  func() error { return s.Ping(t.Context()) },
		"check": func() error { return s.CheckSchema(t.Context()) },
		"claim": func() error {
			_, err := s.Claim(t.Context(), store.ClaimRequest{Wants: []store.Want{{Queue: "q", Limit: 1}}})
			return err
		},
	} {
		if call() == nil {
			t.Errorf("%s after the close went through", name)
		}
	}
	if _, err := os.Stat(s.path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last close left the WAL behind: %v", err)
	}
}
