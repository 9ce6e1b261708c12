package storetest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
	"queued/job"
)

var migrateLaws = []law{
	{"Migrate_AnEmptyDatabaseIsRefusedWithTheCommandThatMendsIt", migrateEmpty},
	{"Migrate_UpDownUpWithRowsInPlace", migrateUpDownUp},
	{"Migrate_UpOfManyProcessesAtOnceAppliesEachStepOnce", migrateConcurrent},
	{"Migrate_UpTakesUpACutOffStep", migrateResume},
	{"Migrate_TellsOfStepsThatANewerBinaryApplied", migrateNewer},
	{"Migrate_ThePrintedSQLMakesTheSchema", migratePrint},
}

func (f *fixture) up() (applied []int) {
	f.t.Helper()
	if err := f.MigrateUp(f.t.Context(), 0, func(m store.Migration) { applied = append(applied, m.Version) }); err != nil {
		f.t.Fatalf("migrate up: %v", err)
	}
	return applied
}

func (f *fixture) status() []store.Migration {
	f.t.Helper()
	list, err := f.MigrateStatus(f.t.Context())
	if err != nil {
		f.t.Fatalf("migrate status: %v", err)
	}
	return list
}

// wantUsable checks that a job can go all the way.
func (f *fixture) wantUsable() {
	f.t.Helper()
	if err := f.CheckSchema(f.t.Context()); err != nil {
		f.t.Errorf("check schema: %v", err)
	}
	f.Store = f.reopen()
	f.finish(store.Recorded, done(f.one(job.New{Priority: 9}), ""))
	f.finish(store.Recorded, bury(f.one(job.New{Priority: 9}), job.ReasonPermanent, "no"))
	if err := f.Register(f.t.Context(), store.Daemon{Owner: 1}, lease); err != nil {
		f.t.Error(err)
	}
	if _, err := f.Stats(f.t.Context()); err != nil {
		f.t.Error(err)
	}
}

func migrateEmpty(t *testing.T, f *fixture) {
	for _, m := range f.status() {
		if m.AppliedAt != nil || m.Unknown || m.Name == "" {
			t.Errorf("status: got %+v", m)
		}
	}
	err := f.CheckSchema(t.Context())
	f.wantErr(err, store.ErrSchema)
	var se *store.SchemaError
	if !errors.As(err, &se) || se.Have != 0 || se.Want != len(f.status()) || !strings.Contains(se.Hint, "queued migrate up") {
		t.Errorf("got %#v", se)
	}
	_, err = f.Claim(t.Context(), request(1))
	f.wantErr(err, store.ErrSchema)
	_, err = f.Enqueue(t.Context(), []job.New{{Kind: "k"}})
	f.wantErr(err, store.ErrSchema)
	if err := f.MigrateDown(t.Context(), 0, nil); err != nil {
		t.Errorf("migrate down: %v", err)
	}
}

func migrateUpDownUp(t *testing.T, f *fixture) {
	want := f.up()
	if len(want) == 0 || len(want) != len(f.status()) {
		t.Fatalf("applied %v of %v", want, f.status())
	}
	for _, m := range f.status() {
		if m.AppliedAt == nil {
			t.Errorf("status: %+v is not applied", m)
		}
	}
	f.wantUsable()
	f.enqueue(job.New{Kind: "k", Key: "a"})
	f.finish(store.Recorded, retry(f.one(job.New{Priority: 9}), lease, "failed"))
	if got := f.up(); len(got) != 0 {
		t.Errorf("up again applied %v", got)
	}
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 3 {
		t.Errorf("rows after up again: got %d, want 3", n)
	}
	// Down and up step by step, rows in place.
	for version := range slices.Backward(want) {
		if err := f.MigrateDown(t.Context(), version, nil); err != nil {
			t.Fatalf("down to %d: %v", version, err)
		}
		f.wantErr(f.CheckSchema(t.Context()), store.ErrSchema)
		if err := f.MigrateUp(t.Context(), version+1, nil); err != nil {
			t.Fatalf("up to %d: %v", version+1, err)
		}
		if err := f.MigrateDown(t.Context(), version, nil); err != nil {
			t.Fatalf("down to %d: %v", version, err)
		}
	}
	for _, m := range f.status() {
		if m.AppliedAt != nil {
			t.Errorf("status at the bottom: %+v", m)
		}
	}
	if diff := cmp.Diff(want, f.up()); diff != "" {
		t.Errorf("up applied (-want +got):\n%s", diff)
	}
	f.wantUsable()
}

func migrateConcurrent(t *testing.T, f *fixture) {
	applied := make([][]int, 10)
	f.parallel(len(applied), func(i int, s store.Store) error {
		if err := s.MigrateUp(t.Context(), 0, func(m store.Migration) { applied[i] = append(applied[i], m.Version) }); err != nil {
			return err
		}
		return s.CheckSchema(t.Context())
	})
	n := 0
	for _, list := range applied {
		n += len(list)
	}
	if want := len(f.status()); n != want {
		t.Errorf("steps applied: got %v, want %d", applied, want)
	}
	f.wantUsable()
}

func migrateResume(t *testing.T, f *fixture) {
	f.up()
	f.enqueue(job.New{Kind: "kept"})
	f.exec("DELETE FROM schema_migrations")
	f.exec("DROP TABLE daemons")
	f.exec("DROP TABLE leases")
	f.wantErr(f.CheckSchema(t.Context()), store.ErrSchema)
	f.up()
	f.wantUsable()
	if n := f.int("SELECT COUNT(*) FROM jobs WHERE kind = 'kept'"); n != 1 {
		t.Errorf("rows of before: got %d, want 1", n)
	}
}

func migrateNewer(t *testing.T, f *fixture) {
	f.up()
	f.exec("INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, 'of the future', ?)", t0)
	list := f.status()
	last := list[len(list)-1]
	if last.Version != 999 || last.Name != "of the future" || !last.Unknown || last.AppliedAt == nil || !last.AppliedAt.Equal(t0) {
		t.Errorf("status: got %+v", last)
	}
	err := f.CheckSchema(t.Context())
	var se *store.SchemaError
	if !errors.As(err, &se) || se.Have != 999 || strings.Contains(se.Hint, "migrate up") {
		t.Errorf("check schema: got %v", err)
	}
	if got := f.up(); len(got) != 0 {
		t.Errorf("up applied %v", got)
	}
	f.wantErr(f.MigrateDown(t.Context(), 0, nil), store.ErrSchema)
	if n := f.int("SELECT COUNT(*) FROM jobs"); n != 0 {
		t.Errorf("rows: got %d", n)
	}
}

func migratePrint(t *testing.T, f *fixture) {
	text, err := f.MigratePrint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for stmt := range strings.SplitSeq(text, ";\n") {
		if strings.TrimSpace(stmt) != "" && !strings.HasPrefix(strings.TrimSpace(stmt), "BEGIN") && strings.TrimSpace(stmt) != "COMMIT" {
			f.exec(stmt)
		}
	}
	f.wantUsable()
	if got := f.up(); len(got) != 0 {
		t.Errorf("up applied %v", got)
	}
}
