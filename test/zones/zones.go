// Package zones puts named time zones into the tables of a test server, which are
// empty unless somebody fills them. Only tests may import the package.
package zones

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"
	_ "time/tzdata" // the same zones on every machine
)

// Load makes the zones known to the server that db, as an administrator, is
// connected to. Zones that it knows already are left as they are. Transitions
// from 2020 to 2038 are loaded.
func Load(tb testing.TB, db *sql.DB, names ...string) {
	tb.Helper()
	ctx := context.Background()
	conn, err := db.Conn(ctx)
	if err != nil {
		tb.Fatalf("zones: %v", err)
	}
	defer conn.Close()
	for _, name := range names {
		if err := load(ctx, conn, name); err != nil {
			tb.Fatalf("zones: load %s: %v", name, err)
		}
	}
}

func load(ctx context.Context, conn *sql.Conn, name string) (err error) {
	loc, err := time.LoadLocation(name)
	if err != nil {
		return err
	}
	// Tests of several packages share a server.
	var ok sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('queued_test_zones', 60)").Scan(&ok); err != nil || ok.Int64 != 1 {
		return fmt.Errorf("wait for the lock: %v, %w", ok, err)
	}
	defer func() {
		if _, unlock := conn.ExecContext(ctx, "DO RELEASE_LOCK('queued_test_zones')"); err == nil {
			err = unlock
		}
	}()
	var known int
	if err := conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM mysql.time_zone_name WHERE Name = ?", name).Scan(&known); err != nil || known > 0 {
		return err
	}
	res, err := conn.ExecContext(ctx, "INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
	if err != nil {
		return err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return err
	}
	types := map[string]int{}
	for at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).In(loc); at.Year() < 2038; {
		abbr, offset := at.Zone()
		typ, seen := types[abbr]
		if !seen {
			typ = len(types)
			types[abbr] = typ
			if _, err := conn.ExecContext(ctx, "INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation) VALUES (?, ?, ?, ?, ?)",
				id, typ, offset, at.IsDST(), abbr); err != nil {
				return err
			}
		}
		if _, err := conn.ExecContext(ctx, "INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id) VALUES (?, ?, ?)", id, at.Unix(), typ); err != nil {
			return err
		}
		_, end := at.ZoneBounds()
		if end.IsZero() {
			break
		}
		at = end
	}
	// Last, so that nobody reads half a zone: the server keeps what it has read.
	_, err = conn.ExecContext(ctx, "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES (?, ?)", name, id)
	return err
}
