package servers_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"queued/test/servers"
)

// each runs the test on every server, side by side.
func each(t *testing.T, f func(t *testing.T, n servers.Name)) {
	t.Helper()
	t.Parallel()
	for _, n := range servers.All {
		t.Run(string(n), func(t *testing.T) {
			t.Parallel()
			f(t, n)
		})
	}
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = &mysql.NopLogger{} // connections break on purpose here
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func query(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	var v string
	if err := db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// want gives the version of each server, and whether it knows SKIP LOCKED: what the
// servers are here for.
var want = map[servers.Name]struct {
	version    string
	skipLocked bool
}{
	servers.MySQL97:     {"9.", true},
	servers.MySQL56:     {"5.6.", false},
	servers.MariaDB1011: {"10.11.", true},
	servers.MariaDB105:  {"10.5.", false},
}

func TestShared(t *testing.T) {
	each(t, func(t *testing.T, n servers.Name) {
		dsn := servers.Shared(t, n)
		db := open(t, servers.Database(t, dsn))

		version := query(t, db, "SELECT VERSION()")
		t.Log(version)
		if !strings.HasPrefix(version, want[n].version) {
			t.Errorf("version %s, want %s*", version, want[n].version)
		}
		for _, c := range []struct{ query, want string }{
			{"SELECT @@character_set_database", "utf8mb4"},
			{"SELECT @@log_bin", "1"},
			{"SELECT @@binlog_format", "ROW"},
			{"SELECT @@sync_binlog", "0"},
			{"SELECT @@innodb_flush_log_at_trx_commit", "2"},
			{"SELECT @@max_connections", "500"},
			{"SELECT COUNT(*) FROM mysql.user WHERE User = ''", "0"},
		} {
			if got := query(t, db, c.query); got != c.want {
				t.Errorf("%s: %s, want %s", c.query, got, c.want)
			}
		}

		exec(t, db, "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
		_, err := db.Exec("SELECT id FROM t FOR UPDATE SKIP LOCKED")
		if known := err == nil; known != want[n].skipLocked {
			t.Errorf("SKIP LOCKED: error %v, want it known: %v", err, want[n].skipLocked)
		}
	})
}

// A user that a test creates can log in over TCP, and nobody stands before it.
func TestUsers(t *testing.T) {
	each(t, func(t *testing.T, n servers.Name) {
		dsn := servers.Database(t, servers.Shared(t, n))
		admin := open(t, dsn)
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.User, cfg.Passwd = "u"+cfg.DBName[len(cfg.DBName)-12:], "secret"
		exec(t, admin, "CREATE USER '"+cfg.User+"'@'%' IDENTIFIED BY 'secret'")
		t.Cleanup(func() { exec(t, admin, "DROP USER '"+cfg.User+"'@'%'") })
		exec(t, admin, "GRANT SELECT ON `"+cfg.DBName+"`.* TO '"+cfg.User+"'@'%'")

		if got := query(t, open(t, cfg.FormatDSN()), "SELECT CURRENT_USER()"); got != cfg.User+"@%" {
			t.Errorf("logged in as %s, want %s", got, cfg.User+"@%")
		}
	})
}

func TestDatabaseIsDropped(t *testing.T) {
	each(t, func(t *testing.T, n servers.Name) {
		shared := servers.Shared(t, n)
		var name string
		t.Run("use", func(t *testing.T) {
			cfg, err := mysql.ParseDSN(servers.Database(t, shared))
			if err != nil {
				t.Fatal(err)
			}
			name = cfg.DBName
		})
		got := query(t, open(t, shared), "SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?", name)
		if got != "0" {
			t.Errorf("database %s is still there", name)
		}
	})
}

func TestPrivate(t *testing.T) {
	each(t, func(t *testing.T, n servers.Name) {
		s := servers.Start(t, n, servers.Options{Durable: true, Args: []string{"--max-connections=77"}})
		dsn := servers.Database(t, s.DSN())
		db := open(t, dsn)
		t.Log(query(t, db, "SELECT VERSION()"))
		for _, c := range []struct{ query, want string }{
			{"SELECT @@max_connections", "77"},
			{"SELECT @@sync_binlog", "1"},
			{"SELECT @@innodb_flush_log_at_trx_commit", "1"},
		} {
			if got := query(t, db, c.query); got != c.want {
				t.Errorf("%s: %s, want %s", c.query, got, c.want)
			}
		}
		exec(t, db, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE=InnoDB")
		exec(t, db, "INSERT INTO t VALUES (1, 'kept')")

		open, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open.Exec("INSERT INTO t VALUES (2, 'lost')"); err != nil {
			t.Fatal(err)
		}
		addr := s.Addr()
		s.Kill()
		s.Kill() // twice is fine
		if err := db.Ping(); err == nil {
			t.Error("a killed server answers")
		}
		_ = open.Rollback()

		s.Restart()
		if s.Addr() != addr {
			t.Errorf("address %s, was %s", s.Addr(), addr)
		}
		if got := query(t, db, "SELECT GROUP_CONCAT(v) FROM t"); got != "kept" {
			t.Errorf("rows after the kill: %s, want only the committed one", got)
		}

		s.Restart() // of a server that runs
		if got := query(t, db, "SELECT GROUP_CONCAT(v) FROM t"); got != "kept" {
			t.Errorf("rows after a stop: %s", got)
		}

		s.Stop()
		s.Stop()
		if _, err := net.Dial("unix", s.Socket()); err == nil {
			t.Error("a stopped server listens")
		}
	})
}

func TestPause(t *testing.T) {
	each(t, func(t *testing.T, n servers.Name) {
		s := servers.Start(t, n, servers.Options{})
		db := open(t, s.DSN())
		query(t, db, "SELECT 1")

		s.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var one int
		if err := db.QueryRowContext(ctx, "SELECT 1").Scan(&one); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("query on a paused server: %v, want no answer", err)
		}
		s.Resume()
		query(t, db, "SELECT 1")

		s.Pause() // Stop copes
		s.Stop()
	})
}

// The server and its data go when the test ends, a paused server too.
func TestPrivateIsRemoved(t *testing.T) {
	t.Parallel()
	var s *servers.Server
	t.Run("use", func(t *testing.T) {
		s = servers.Start(t, servers.MariaDB105, servers.Options{})
		s.Pause()
	})
	if _, err := net.Dial("tcp", s.Addr()); err == nil {
		t.Error("the server still listens")
	}
	if _, err := os.Stat(s.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is still there: %v", err)
	}
}

// fatal is a testing.TB that remembers why it failed.
type fatal struct {
	testing.TB
	message string
}

func (f *fatal) Helper() {}

func (f *fatal) Fatalf(format string, _ ...any) {
	f.message = format
	panic(f)
}

func TestSharedFailsWithoutServers(t *testing.T) {
	t.Setenv(servers.MySQL97.Env(), "")
	f := &fatal{TB: t}
	defer func() {
		if recover() != f || !strings.Contains(f.message, "make test") || !strings.Contains(f.message, "servers.sh up") {
			t.Errorf("failed with %q, want a message that says what to run", f.message)
		}
	}()
	servers.Shared(f, servers.MySQL97)
}
