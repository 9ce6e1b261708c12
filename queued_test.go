package queued_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"queued"
	mysqlstore "queued/internal/store/mysql"
	"queued/test/servers"
)

// eachServer runs f with queued's tables and a table orders in a database of its
// own on each server.
func eachServer(t *testing.T, f func(t *testing.T, db *sql.DB)) {
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
			db, err := sql.Open("mysql", dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			mustExec(t, db, "CREATE TABLE orders (id INT PRIMARY KEY) ENGINE=InnoDB")
			f(t, db)
		})
	}
}

func mustExec(t *testing.T, db queued.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func count(t *testing.T, db *sql.DB, table string) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEnqueue_WithTheBusinessWriteOrNotAtAll(t *testing.T) {
	eachServer(t, func(t *testing.T, db *sql.DB) {
		for _, commit := range []bool{false, true} {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			mustExec(t, tx, "INSERT INTO orders VALUES (1)")
			r, err := queued.Producer{}.Enqueue(t.Context(), tx, queued.NewJob{Kind: "receipt", Key: "order-1"})
			if err != nil || !r.New {
				t.Fatalf("got %v, %v, want a new job", r, err)
			}
			want := 0
			if commit {
				want = 1
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				t.Fatal(err)
			}
			if orders, jobs := count(t, db, "orders"), count(t, db, "jobs"); orders != want || jobs != want {
				t.Errorf("committed %v: got %d orders and %d jobs, want %d", commit, orders, jobs, want)
			}
		}
		r, err := queued.Producer{}.Enqueue(t.Context(), db, queued.NewJob{Kind: "receipt", Key: "order-1"})
		if err != nil || r.New || r.ID == 0 {
			t.Errorf("got %v, %v for a key that is taken, want the job that has it", r, err)
		}
	})
}

func TestEnqueueMany_OnAPoolIsOneTransaction(t *testing.T) {
	eachServer(t, func(t *testing.T, db *sql.DB) {
		mustExec(t, db, "CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW BEGIN IF NEW.kind = 'poison' THEN SIGNAL SQLSTATE '45000'; END IF; END")
		jobs := make([]queued.NewJob, 250)
		for i := range jobs {
			jobs[i].Kind = "k"
		}
		jobs[230].Kind = "poison"
		_, err := queued.Producer{}.EnqueueMany(t.Context(), db, jobs)
		var e *mysql.MySQLError
		if !errors.As(err, &e) || e.Number != 1644 {
			t.Errorf("got %v, want the server's error", err)
		}
		if n := count(t, db, "jobs"); n != 0 {
			t.Errorf("got %d jobs, want none", n)
		}
	})
}

// Producers that put the same keys in at the same time, in any order, meet in
// deadlocks. None of them sees one, and each key is new for exactly one of them.
func TestEnqueueMany_ProducersOfTheSameKeysDontSeeDeadlocks(t *testing.T) {
	eachServer(t, func(t *testing.T, db *sql.DB) {
		const producers, keys = 6, 120
		news := make([]int, keys)
		ids := make([]int64, keys)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range producers {
			wg.Go(func() {
				order := rand.Perm(keys)
				for len(order) > 0 {
					n := min(len(order), 1+rand.IntN(20))
					jobs := make([]queued.NewJob, n)
					for i, key := range order[:n] {
						jobs[i] = queued.NewJob{Kind: "k", Key: fmt.Sprint(key)}
					}
					results, err := queued.Producer{}.EnqueueMany(t.Context(), db, jobs)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for i, key := range order[:n] {
						if results[i].New {
							news[key]++
						}
						if ids[key] == 0 {
							ids[key] = results[i].ID
						}
						if ids[key] != results[i].ID {
							t.Errorf("key %d: got ids %d and %d", key, ids[key], results[i].ID)
						}
					}
					mu.Unlock()
					order = order[n:]
				}
			})
		}
		wg.Wait()
		for key, n := range news {
			if n != 1 {
				t.Errorf("key %d was new %d times, want once", key, n)
			}
		}
		if n := count(t, db, "jobs"); n != keys {
			t.Errorf("got %d jobs, want %d", n, keys)
		}
	})
}

// recorder keeps the last statement and refuses it.
type recorder struct {
	query string
}

func (r *recorder) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	r.query = query
	return nil, errors.New("refused")
}

func (r *recorder) QueryContext(_ context.Context, query string, _ ...any) (*sql.Rows, error) {
	r.query = query
	return nil, errors.New("refused")
}

func TestEnqueue_WhereTheTableIs(t *testing.T) {
	for want, enqueue := range map[string]func(queued.DB) error{
		" INTO `queued`.`jobs` ": func(db queued.DB) error {
			_, err := queued.Enqueue(t.Context(), db, queued.NewJob{Kind: "k"})
			return err
		},
		" INTO `jobs` ": func(db queued.DB) error {
			_, err := queued.Producer{}.Enqueue(t.Context(), db, queued.NewJob{Kind: "k"})
			return err
		},
		" INTO `my-app`.`q_jobs` ": func(db queued.DB) error {
			_, err := queued.Producer{Schema: "my-app", Prefix: "q_"}.EnqueueMany(t.Context(), db, []queued.NewJob{{Kind: "k"}})
			return err
		},
		`INTO "jobs" `: func(db queued.DB) error {
			_, err := queued.Producer{Dialect: queued.SQLite}.Enqueue(t.Context(), db, queued.NewJob{Kind: "k"})
			return err
		},
	} {
		var rec recorder
		if err := enqueue(&rec); err == nil || !strings.Contains(rec.query, want) {
			t.Errorf("got %v after %q, want %q in it", err, rec.query, want)
		}
	}
}

func TestEnqueue_BadJobsAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	var rec recorder
	_, err := queued.Producer{MaxPayload: 10}.EnqueueMany(t.Context(), &rec, []queued.NewJob{
		{Kind: "k"},
		{Payload: []byte(`"0123456789"`), Priority: 10},
		{Kind: "k", Delay: -1},
	})
	if err == nil || rec.query != "" {
		t.Fatalf("got %v after %q, want an error and no statement", err, rec.query)
	}
	for _, want := range []string{"job 1: kind: must not be empty", "payload: must be at most 10 bytes", "priority: must be between 0 and 9", "job 2: delay: must be between"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want %q in it", err, want)
		}
	}
	var field *queued.FieldError
	if !errors.As(err, &field) || field.Field != "kind" {
		t.Errorf("got %v, want FieldErrors", err)
	}
}
