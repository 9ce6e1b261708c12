package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"queued/internal/store"
	"queued/migrations"
)

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  applied_at INTEGER NOT NULL
)`

func steps() ([]migrations.Step, error) { return migrations.Load("sqlite", migrations.Vars{}) }

// applied reads what was applied, by version: nothing before the first migration.
func applied(t *tx) (list []store.Migration, err error) {
	var exists bool
	if err := t.row("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations')", nil, &exists); err != nil || !exists {
		return nil, err
	}
	err = t.query("SELECT version, name, applied_at FROM schema_migrations WHERE version > 0 ORDER BY version", nil, func(rows *sql.Rows) error {
		var m store.Migration
		var ms int64
		if err := rows.Scan(&m.Version, &m.Name, &ms); err != nil {
			return err
		}
		at := atMillis(ms)
		m.AppliedAt = &at
		list = append(list, m)
		return nil
	})
	return list, err
}

// MigrateStatus lists the migrations; see store.Migrator.
func (s *Store) MigrateStatus(ctx context.Context) ([]store.Migration, error) {
	steps, err := steps()
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var done []store.Migration
	if err := s.read(ctx, "read migrations", s.reads, func(t *tx) (err error) {
		done, err = applied(t)
		return err
	}); err != nil {
		return nil, err
	}
	list := make([]store.Migration, len(steps))
	for i, st := range steps {
		list[i] = store.Migration{Version: st.Version, Name: st.Name}
	}
	for _, m := range done {
		if m.Version <= len(steps) {
			list[m.Version-1].AppliedAt = m.AppliedAt
			continue
		}
		m.Unknown = true
		list = append(list, m)
	}
	return list, nil
}

// MigrateUp brings the schema up; see store.Migrator. Each step is one transaction.
func (s *Store) MigrateUp(ctx context.Context, target int, progress func(store.Migration)) error {
	return s.migrate(ctx, func(steps []migrations.Step, have int) (*migrations.Step, error) {
		if have >= len(steps) || target > 0 && have >= target {
			return nil, nil
		}
		return &steps[have], nil
	}, func(t *tx, st *migrations.Step) error {
		if err := run(t, st.Up); err != nil {
			return err
		}
		_, err := t.exec("INSERT INTO schema_migrations (version, name, applied_at) VALUES (?, ?, ?)", st.Version, st.Name, t.now)
		return err
	}, progress)
}

// MigrateDown takes the schema down; see store.Migrator.
func (s *Store) MigrateDown(ctx context.Context, target int, progress func(store.Migration)) error {
	return s.migrate(ctx, func(steps []migrations.Step, have int) (*migrations.Step, error) {
		switch {
		case have <= max(target, 0):
			return nil, nil
		case have > len(steps):
			return nil, &store.SchemaError{Have: have, Want: len(steps), Hint: "it was made by a newer version: migrate down with that one"}
		}
		return &steps[have-1], nil
	}, func(t *tx, st *migrations.Step) error {
		if err := run(t, st.Down); err != nil {
			return err
		}
		_, err := t.exec("DELETE FROM schema_migrations WHERE version >= ?", st.Version)
		return err
	}, progress)
}

func run(t *tx, statements []string) error {
	for _, stmt := range statements {
		if _, err := t.exec(stmt); err != nil {
			return err
		}
	}
	return nil
}

// migrate applies one step after the other until next, given the version that the
// database has, names none. The version is read under the write lock, so that of
// several processes each step is done by one.
func (s *Store) migrate(ctx context.Context, next func(steps []migrations.Step, have int) (*migrations.Step, error),
	do func(*tx, *migrations.Step) error, progress func(store.Migration),
) error {
	steps, err := steps()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	for {
		var st *migrations.Step
		err := s.write(ctx, "migrate", s.db, func(t *tx) error {
			st = nil
			have, err := version(t)
			if err != nil {
				return err
			}
			if st, err = next(steps, have); err != nil || st == nil {
				return err
			}
			if _, err := t.exec(createMigrations); err != nil {
				return err
			}
			if err := do(t, st); err != nil {
				return fmt.Errorf("step %d (%s): %w", st.Version, st.Name, err)
			}
			return nil
		})
		if errors.Is(err, store.ErrConflict) && ctx.Err() == nil {
			continue // another process has the lock for longer than an operation may take: it may be migrating
		}
		if err != nil || st == nil {
			return err
		}
		if progress != nil {
			progress(store.Migration{Version: st.Version, Name: st.Name})
		}
	}
}

// MigratePrint is the SQL for a person to run; see store.Migrator.
func (s *Store) MigratePrint(context.Context) (string, error) {
	steps, err := steps()
	if err != nil {
		return "", fmt.Errorf("print migrations: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "BEGIN IMMEDIATE;\n\n%s;\n", createMigrations)
	for _, st := range steps {
		fmt.Fprintf(&b, "\n-- %04d %s\n", st.Version, st.Name)
		for _, stmt := range st.Up {
			fmt.Fprintf(&b, "%s;\n\n", stmt)
		}
		// Names come from file names.
		fmt.Fprintf(&b, "INSERT INTO schema_migrations (version, name, applied_at) VALUES (%d, '%s', strftime('%%s', 'now') * 1000);\n", st.Version, st.Name)
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}

// CheckSchema returns nil when the schema is the one this binary needs.
func (s *Store) CheckSchema(ctx context.Context) error {
	steps, err := steps()
	if err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	var have int
	if err := s.read(ctx, "read the schema version", s.reads, func(t *tx) (err error) {
		have, err = version(t)
		return err
	}); err != nil {
		return err
	}
	switch want := len(steps); {
	case have < want:
		return &store.SchemaError{Have: have, Want: want, Hint: "run `queued migrate up`"}
	case have > want:
		return &store.SchemaError{Have: have, Want: want, Hint: "it was made by a newer version: install that one"}
	}
	return nil
}

func version(t *tx) (int, error) {
	list, err := applied(t)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	return list[len(list)-1].Version, nil
}
