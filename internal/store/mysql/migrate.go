package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"queued/internal/store"
	"queued/migrations"
)

func (s *Store) createMigrations() string {
	return "CREATE TABLE IF NOT EXISTS " + s.t.migrations + ` (
  version    INT NOT NULL,
  name       VARCHAR(191) CHARACTER SET utf8mb4 NOT NULL,
  applied_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  PRIMARY KEY (version)
) ENGINE=InnoDB`
}

func (s *Store) steps(ctx context.Context) ([]migrations.Step, error) {
	v, err := s.probe(ctx)
	if err != nil {
		return nil, err
	}
	return migrations.Load("mysql", v.vars(s.opts.Prefix))
}

// MigrateStatus lists the migrations; see store.Migrator.
func (s *Store) MigrateStatus(ctx context.Context) ([]store.Migration, error) {
	steps, err := s.steps(ctx)
	if err != nil {
		return nil, err
	}
	var list []store.Migration
	for _, st := range steps {
		list = append(list, store.Migration{Version: st.Version, Name: st.Name})
	}
	err = s.do(ctx, "read migrations", s.db, func(c *conn) error {
		return c.query(func(r row) error {
			version := int(r.int(0))
			if version < 1 {
				return nil
			}
			if version > len(steps) {
				list = append(list, store.Migration{Version: version, Name: r.str(1), AppliedAt: r.timePtr(2), Unknown: true})
				return nil
			}
			list[version-1].AppliedAt = r.timePtr(2)
			return nil
		}, "SELECT version, name, applied_at FROM "+s.t.migrations+" ORDER BY version")
	})
	if codeOf(err) == 1146 {
		err = nil
	}
	return list, err
}

// MigratePrint is the SQL for a person to run; see store.Migrator.
func (s *Store) MigratePrint(ctx context.Context) (string, error) {
	steps, err := s.steps(ctx)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s;\n", s.createMigrations())
	for _, st := range steps {
		fmt.Fprintf(&b, "\n-- %04d %s\n", st.Version, st.Name)
		for _, stmt := range st.Up {
			fmt.Fprintf(&b, "%s;\n\n", stmt)
		}
		fmt.Fprintf(&b, "%s;\n", s.recordStep(st))
	}
	return b.String(), nil
}

// recordStep is the statement that marks a step as applied. Names come from file names.
func (s *Store) recordStep(st migrations.Step) string {
	return fmt.Sprintf("INSERT IGNORE INTO %s (version, name) VALUES (%d, '%s')", s.t.migrations, st.Version, st.Name)
}

// MigrateUp brings the schema up; see store.Migrator.
func (s *Store) MigrateUp(ctx context.Context, target int, progress func(store.Migration)) error {
	return s.migrate(ctx, func(c *conn, steps []migrations.Step, have int) error {
		for _, st := range steps {
			if st.Version <= have || target > 0 && st.Version > target {
				continue
			}
			for _, stmt := range append(st.Up, s.recordStep(st)) {
				if _, err := c.exec(stmt); err != nil {
					return fmt.Errorf("migration %d (%s): %w", st.Version, st.Name, err)
				}
			}
			report(progress, st)
		}
		return nil
	})
}

// MigrateDown takes the schema down; see store.Migrator.
func (s *Store) MigrateDown(ctx context.Context, target int, progress func(store.Migration)) error {
	return s.migrate(ctx, func(c *conn, steps []migrations.Step, have int) error {
		if have > len(steps) {
			return &store.SchemaError{Have: have, Want: len(steps), Hint: "it was made by a newer version: migrate down with that one"}
		}
		for i := len(steps) - 1; i >= max(target, 0); i-- {
			st := steps[i]
			// The mark goes last: a cut-off step is repeated.
			for _, stmt := range append(st.Down, fmt.Sprintf("DELETE FROM %s WHERE version = %d", s.t.migrations, st.Version)) {
				if _, err := c.exec(stmt); err != nil {
					return fmt.Errorf("migration %d (%s) down: %w", st.Version, st.Name, err)
				}
			}
			report(progress, st)
		}
		return nil
	})
}

func report(progress func(store.Migration), st migrations.Step) {
	if progress != nil {
		progress(store.Migration{Version: st.Version, Name: st.Name})
	}
}

// migrate runs fn while no other process migrates these tables. The named lock
// belongs to the connection: it is free again when this process dies.
func (s *Store) migrate(ctx context.Context, fn func(c *conn, steps []migrations.Step, have int) error) error {
	steps, err := s.steps(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	sc, err := s.db.Conn(ctx)
	if err != nil {
		return wrap(ctx, "migrate", err)
	}
	defer sc.Close() // gives the connection back
	var lock string
	err = sc.Raw(func(dc any) (err error) {
		c := &conn{ctx: ctx, dc: dc.(driver.Conn), meter: &s.meter}
		var schema string
		if err := c.query(func(r row) error { schema = r.str(0); return nil }, "SELECT DATABASE()"); err != nil {
			return err
		}
		// Lock names are the server's, not the schema's, and short.
		lock = fmt.Sprintf("queued.migrate.%x", sha256.Sum256([]byte(schema+"\x00"+s.opts.Prefix)))[:60]
		for got := int64(0); got != 1; {
			if err := c.query(func(r row) error { got = r.int(0); return nil }, "SELECT GET_LOCK('"+lock+"', 1)"); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("waiting for another process that migrates: %w", context.Cause(ctx))
			}
		}
		defer func() {
			c.ctx = context.WithoutCancel(ctx)
			_, e := c.exec("DO RELEASE_LOCK('" + lock + "')")
			err = errors.Join(err, e)
		}()
		if _, err := c.exec(s.createMigrations()); err != nil {
			return err
		}
		have := 0
		if err := c.query(func(r row) error { have = int(r.int(0)); return nil }, "SELECT COALESCE(MAX(version), 0) FROM "+s.t.migrations); err != nil {
			return err
		}
		return fn(c, steps, have)
	})
	return wrap(ctx, "migrate", err)
}
