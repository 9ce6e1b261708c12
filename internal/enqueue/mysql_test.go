package enqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"queued/internal/enqueue"
	mysqlstore "queued/internal/store/mysql"
	"queued/job"
	"queued/test/servers"
	"queued/test/zones"
)

var mysqlTable = enqueue.Table{Dialect: enqueue.MySQL, Name: "jobs"}

// eachServer runs f with the jobs table in a database of its own on each server.
func eachServer(t *testing.T, f func(t *testing.T, server servers.Name, dsn string)) {
	t.Helper()
	for _, server := range servers.All {
		t.Run(string(server), func(t *testing.T) {
			dsn := servers.Database(t, servers.Shared(t, server))
			st, err := mysqlstore.Open(mysqlstore.Options{DSN: dsn})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			if err := st.MigrateUp(t.Context(), 0, nil); err != nil {
				t.Fatal(err)
			}
			f(t, server, dsn)
		})
	}
}

// open opens dsn with parameters, "name=value", added to it.
func open(t *testing.T, dsn string, params ...string) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn + "?" + strings.Join(params, "&"))
	if err != nil {
		t.Fatal(err)
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

func isDeadlock(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == 1213
}

func mustExec(t *testing.T, db enqueue.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestInsert_MySQLWritesTheContract(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		db := open(t, dsn)
		at := time.Date(2030, 5, 6, 7, 8, 9, 123_000_001, time.UTC)
		emoji := `{"a": "👨‍👩‍👧 \u0000 \\ '"}`
		_, err := mysqlTable.Insert(t.Context(), db, []job.New{
			{Kind: "bare"},
			{
				Kind: "full", Queue: "mail", Key: "k-é-👍", Payload: []byte(emoji), Priority: 9, MaxAttempts: 3,
				Timeout: 1500 * time.Millisecond, At: at, ExpiresAt: at.Add(time.Hour),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := dump(t, open(t, dsn, "time_zone=%27%2B00:00%27"), `SELECT queue, kind, idempotency_key, payload, priority, max_attempts, timeout_ms,
			IF(available_at = created_at, 'now', available_at), expires_at, status, attempts FROM jobs ORDER BY id`)
		want := []string{
			"default bare <nil> <nil> 0 <nil> <nil> now <nil> ready 0",
			"mail full k-é-👍 " + emoji + " 9 3 1500 2030-05-06 07:08:09.124 2030-05-06 08:08:09.123 ready 0",
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("rows (-want +got):\n%s", d)
		}
	})
}

func TestInsert_MySQLSaysWhichAreNewWhateverTheDriverFlags(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		for _, flags := range []string{"", "clientFoundRows=true", "interpolateParams=true", "sql_mode=%27%27"} {
			db := open(t, dsn, flags)
			testWhichAreNew(t, db, mysqlTable)
			mustExec(t, db, "DELETE FROM jobs")
		}
	})
}

// A server of a cluster counts in steps, and a bulk insert takes ids in blocks of
// its own in between.
func TestInsert_MySQLIDsAreTheRowsWhateverTheStep(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		mustExec(t, open(t, dsn), "CREATE TABLE source (kind VARCHAR(64)) ENGINE=InnoDB")
		mustExec(t, open(t, dsn), "INSERT INTO source VALUES ('bulk'), ('bulk'), ('bulk'), ('bulk'), ('bulk')")
		for _, params := range [][]string{nil, {"auto_increment_increment=3", "auto_increment_offset=2"}} {
			db := open(t, dsn, params...)
			stop := make(chan struct{})
			done := make(chan error, 1)
			go func() {
				for {
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
					if _, err := db.Exec("INSERT INTO jobs (kind) SELECT kind FROM source"); err != nil && !isDeadlock(err) {
						done <- err
						return
					}
				}
			}()
			for round := range 10 {
				jobs := make([]job.New, 30)
				for i := range jobs {
					jobs[i] = job.New{Kind: fmt.Sprintf("%d-%d", round, i), MaxAttempts: len(params) + 1}
				}
				got, err := mysqlTable.Insert(t.Context(), db, jobs)
				for isDeadlock(err) { // MySQL 5.6 between a bulk insert's lock on the ids and a plain insert
					got, err = mysqlTable.Insert(t.Context(), db, jobs)
				}
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range got {
					var kind string
					if err := db.QueryRowContext(t.Context(), "SELECT kind FROM jobs WHERE id = ?", r.ID).Scan(&kind); err != nil || kind != jobs[i].Kind {
						t.Fatalf("%v: job %d has id %d: that row is of kind %q (%v), want %q", params, i, r.ID, kind, err, jobs[i].Kind)
					}
				}
			}
			close(stop)
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestInsert_MySQLFindsARowNewerThanTheSnapshot(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		db := open(t, dsn)
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		var n int
		if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM jobs").Scan(&n); err != nil { // takes the snapshot
			t.Fatal(err)
		}
		other, err := mysqlTable.Insert(t.Context(), db, []job.New{{Kind: "k", Key: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := mysqlTable.Insert(t.Context(), tx, []job.New{{Kind: "k", Key: "a"}, {Kind: "k", Key: "b"}})
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != (enqueue.Result{ID: other[0].ID}) || !got[1].New {
			t.Errorf("got %v, want the row of the other transaction, %d, and a new one", got, other[0].ID)
		}
	})
}

// A duplicate must not wait for the worker that runs the job.
func TestInsert_MySQLDuplicateOfALockedRowDoesNotWait(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		db := open(t, dsn, "innodb_lock_wait_timeout=1")
		first, err := mysqlTable.Insert(t.Context(), db, []job.New{{Kind: "k", Key: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		claim, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer claim.Rollback()
		mustExec(t, claim, "UPDATE jobs SET status = 'running', attempts = attempts + 1 WHERE id = ?", first[0].ID)
		got, err := mysqlTable.Insert(t.Context(), db, []job.New{{Kind: "k", Key: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != (enqueue.Result{ID: first[0].ID}) {
			t.Errorf("got %v, want the running job %d", got[0], first[0].ID)
		}
	})
}

func TestInsert_MySQLDuplicateKeepsTheCallersTransaction(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		db := open(t, dsn)
		mustExec(t, db, "CREATE TABLE orders (id INT PRIMARY KEY) ENGINE=InnoDB")
		if _, err := mysqlTable.Insert(t.Context(), db, []job.New{{Kind: "k", Key: "a"}}); err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		mustExec(t, tx, "INSERT INTO orders VALUES (1)")
		if _, err := mysqlTable.Insert(t.Context(), tx, []job.New{{Kind: "k", Key: "b"}, {Kind: "k", Key: "a"}, {Kind: "k"}}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		got := dump(t, db, "SELECT (SELECT COUNT(*) FROM orders), (SELECT COUNT(*) FROM jobs)")
		if d := cmp.Diff([]string{"1 3"}, got); d != "" {
			t.Errorf("orders and jobs (-want +got):\n%s", d)
		}
	})
}

func TestInsert_MySQLPassesADeadlockOn(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		db := open(t, dsn)
		insert := func(tx *sql.Tx, key string) error {
			_, err := mysqlTable.Insert(t.Context(), tx, []job.New{{Kind: "k", Key: key}})
			return err
		}
		var txs [2]*sql.Tx
		for i := range txs {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			txs[i] = tx
			if err := insert(tx, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		errs := make(chan error)
		for i, tx := range txs {
			go func() {
				err := insert(tx, fmt.Sprint(1-i))
				if err != nil {
					tx.Rollback()
				} else {
					err = tx.Commit()
				}
				errs <- err
			}()
		}
		if err := errors.Join(<-errs, <-errs); !isDeadlock(err) {
			t.Errorf("got %v, want one error 1213", err)
		}
	})
}

func TestInsert_MySQLNeedsNoMoreThanINSERT(t *testing.T) {
	eachServer(t, func(t *testing.T, _ servers.Name, dsn string) {
		admin := open(t, dsn)
		cfg, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mysqlTable.Insert(t.Context(), admin, []job.New{{Kind: "k", Key: "a"}}); err != nil {
			t.Fatal(err)
		}
		for grant, wantID := range map[string]int64{"INSERT": 0, "INSERT, SELECT": 1, "INSERT, SELECT (id, idempotency_key)": 1} {
			user := fmt.Sprintf("u%d", time.Now().UnixNano()%1e12)
			mustExec(t, admin, "CREATE USER '"+user+"'@'%' IDENTIFIED BY 'producer'")
			t.Cleanup(func() {
				if _, err := admin.ExecContext(context.Background(), "DROP USER '"+user+"'@'%'"); err != nil {
					t.Error(err)
				}
			})
			mustExec(t, admin, "GRANT "+grant+" ON `"+cfg.DBName+"`.jobs TO '"+user+"'@'%'")
			producer := cfg.Clone()
			producer.User, producer.Passwd = user, "producer"
			got, err := mysqlTable.Insert(t.Context(), open(t, producer.FormatDSN()), []job.New{{Kind: "k", Key: "a"}, {Kind: "k"}})
			if err != nil {
				t.Errorf("%s: %v", grant, err)
				continue
			}
			if got[0] != (enqueue.Result{ID: wantID}) || !got[1].New {
				t.Errorf("%s: got %v, want the id %d and a new one", grant, got, wantID)
			}
		}
	})
}

// Every instant is stored as it is meant in every session time zone, through both
// changes of clocks, with the server's clock at the change as well.
func TestInsert_MySQLTimesAreRightInEverySessionTimeZone(t *testing.T) {
	named := []string{"Europe/Berlin", "America/St_Johns"}
	eachServer(t, func(t *testing.T, server servers.Name, dsn string) {
		db := open(t, dsn)
		db.SetMaxOpenConns(1)
		zones.Load(t, db, named...)
		var jobs []job.New
		var moments []time.Time // of the server's clock
		for _, zone := range named {
			loc, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			_, change := time.Date(2026, 12, 1, 0, 0, 0, 0, loc).ZoneBounds() // spring 2027
			for range 2 {
				for _, d := range []time.Duration{-90, -60, -1, 0, 30, 60} {
					m := change.Add(d*time.Minute + 123*time.Millisecond)
					moments = append(moments, m)
					jobs = append(jobs, job.New{Kind: "k", At: m, ExpiresAt: m})
				}
				_, change = change.ZoneBounds()
			}
		}
		for _, d := range []time.Duration{1, 1000, 30 * 60_000, 60 * 60_000, 2 * 3600_000} {
			jobs = append(jobs, job.New{Kind: "k", Delay: d * time.Millisecond})
		}
		jobs = append(jobs, job.New{Kind: "k"})

		off := 0
		for _, zone := range append([]string{"+00:00", "+05:30", "-03:30", "SYSTEM"}, named...) {
			for _, now := range moments {
				mustExec(t, db, "SET time_zone = ?", zone)
				mustExec(t, db, "SET timestamp = ?", float64(now.UnixMilli())/1000)
				got, err := mysqlTable.Insert(t.Context(), db, jobs)
				if err != nil {
					t.Fatalf("%s at %s: %v", zone, now, err)
				}
				var session string
				if err := db.QueryRowContext(t.Context(), "SELECT @@time_zone").Scan(&session); err != nil || session != zone {
					t.Fatalf("session time zone is %q after the insert (%v), want %q", session, err, zone)
				}
				mustExec(t, db, "SET time_zone = '+00:00'")
				rows := dump(t, db, fmt.Sprintf("SELECT CAST(UNIX_TIMESTAMP(available_at) * 1000 AS SIGNED), CAST(UNIX_TIMESTAMP(expires_at) * 1000 AS SIGNED) FROM jobs WHERE id >= %d ORDER BY id", got[0].ID))
				for i, row := range rows {
					want := now.Add(jobs[i].Delay).UnixMilli()
					line := fmt.Sprintf("%d <nil>", want)
					if !jobs[i].At.IsZero() {
						want = jobs[i].At.UnixMilli()
						line = fmt.Sprintf("%d %d", want, want)
					}
					if row == line {
						continue
					}
					// The documented exception: no local time stands for an instant within
					// the hour that comes again, and MySQL 5.6 can't leave the session's zone.
					if server == servers.MySQL56 && inRepeatedHour(time.UnixMilli(want), zone) {
						off++
						continue
					}
					t.Errorf("%s at %s: %+v: got %s, want %s", zone, now.UTC(), jobs[i], row, line)
				}
				mustExec(t, db, "DELETE FROM jobs")
				if t.Failed() {
					return
				}
			}
		}
		if off > 0 {
			t.Logf("%d instants within a repeated hour are stored an hour off", off)
		}
	})
}

// inRepeatedHour says whether the local time of t in zone stands for another instant too.
func inRepeatedHour(t time.Time, zone string) bool {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return false // a fixed offset
	}
	const wall = "15:04:05.000"
	local := t.In(loc)
	for _, d := range []time.Duration{-time.Hour, time.Hour} {
		if local.Add(d).Format(wall) == local.Format(wall) {
			return true
		}
	}
	return false
}
