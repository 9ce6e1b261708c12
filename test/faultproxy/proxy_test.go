package faultproxy_test

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

	"queued/test/faultproxy"
	"queued/test/servers"
)

// fixture is a database with the table t (id, v), reached directly and through a proxy.
type fixture struct {
	t       *testing.T
	proxy   *faultproxy.Proxy
	config  *mysql.Config // through the proxy
	through *sql.DB
	direct  *sql.DB
}

// onEach runs the test on each kind of server.
func onEach(t *testing.T, test func(t *testing.T, f *fixture)) {
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			test(t, newFixture(t, servers.Shared(t, name)))
		})
	}
}

func newFixture(t *testing.T, dsn string) *fixture {
	t.Helper()
	cfg, err := mysql.ParseDSN(servers.Database(t, dsn))
	if err != nil {
		t.Fatal(err)
	}
	cfg.InterpolateParams, cfg.MultiStatements, cfg.ParseTime = true, true, true
	cfg.Logger = &mysql.NopLogger{}
	f := &fixture{t: t, proxy: faultproxy.Start(t, cfg.Addr)}
	f.direct = open(t, cfg)
	f.config = cfg.Clone()
	f.config.Addr = f.proxy.Addr()
	f.through = open(t, f.config)
	f.exec(f.direct, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT) ENGINE=InnoDB")
	return f
}

func open(t *testing.T, cfg *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func (f *fixture) exec(db *sql.DB, text string, args ...any) {
	f.t.Helper()
	if _, err := db.Exec(text, args...); err != nil {
		f.t.Fatal(err)
	}
}

// async runs the statement through the proxy, in the background.
func (f *fixture) async(ctx context.Context, text string) <-chan error {
	result := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := f.through.ExecContext(ctx, text)
		result <- err
	}()
	f.t.Cleanup(func() {
		f.proxy.CutAll()
		<-done
	})
	return result
}

type queryer interface {
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

func (f *fixture) number(db queryer, text string, args ...any) int {
	f.t.Helper()
	var n int
	if err := db.QueryRowContext(context.Background(), text, args...).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// wantRows checks how many rows are committed.
func (f *fixture) wantRows(want int) {
	f.t.Helper()
	if got := f.number(f.direct, "SELECT COUNT(*) FROM t"); got != want {
		f.t.Errorf("got %d rows committed, want %d", got, want)
	}
}

func (f *fixture) wantHits(fault *faultproxy.Fault, want int) {
	f.t.Helper()
	if got := fault.Hits(); got != want {
		f.t.Errorf("got %d hits, want %d", got, want)
	}
}

func (f *fixture) wantCode(err error, want uint16) {
	f.t.Helper()
	if me, ok := errors.AsType[*mysql.MySQLError](err); !ok || me.Number != want {
		f.t.Errorf("got %v, want error %d", err, want)
	}
}

// eventually waits for something that the server does in its own time.
func (f *fixture) eventually(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not in time: %s", what)
		}
	}
}

const (
	insert      = "INSERT INTO t VALUES (1, 'a')"
	transaction = "START TRANSACTION; INSERT INTO t VALUES (1, 'a;b'); SELECT v FROM t WHERE id = 1; COMMIT"
)

func TestError_BeforeHasNoEffect(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "INSERT", Times: 1, Do: faultproxy.Error(1205, "", "lock wait timeout")})
		_, err := f.through.Exec(insert)
		f.wantCode(err, 1205)
		f.wantRows(0)
		f.wantHits(fault, 1)
		f.exec(f.through, insert)
		f.wantRows(1)
		f.wantHits(fault, 1)
	})
}

func TestError_AfterHasTheEffect(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.through.SetMaxOpenConns(1)
		session := f.number(f.through, "SELECT CONNECTION_ID()")
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "COMMIT", When: faultproxy.After, Do: faultproxy.Error(2013, "HY000", "lost connection")})
		_, err := f.through.Exec(transaction)
		f.wantCode(err, 2013)
		f.wantRows(1)
		f.wantHits(fault, 1)
		if got := f.number(f.through, "SELECT CONNECTION_ID()"); got != session {
			t.Errorf("got session %d after the error, want still %d", got, session)
		}
	})
}

func TestCut_BeforeHasNoEffect(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "INSERT", Times: 1, Do: faultproxy.Cut})
		if _, err := f.through.Exec(insert); !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("got %v, want %v", err, mysql.ErrInvalidConn)
		}
		f.wantHits(fault, 1)
		f.wantRows(0)
		f.exec(f.through, insert)
		f.wantRows(1)
	})
}

func TestCut_AfterHasTheEffect(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "COMMIT", When: faultproxy.After, Do: faultproxy.Cut})
		if _, err := f.through.Exec(transaction); !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("got %v, want %v", err, mysql.ErrInvalidConn)
		}
		f.wantHits(fault, 1)
		f.wantRows(1)
	})
}

func TestHang_BeforeIsExecutedAtRelease(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "INSERT", Do: faultproxy.Hang})
		result := f.async(t.Context(), insert)
		fault.Wait(1)
		f.wantRows(0)
		fault.Release()
		if err := <-result; err != nil {
			t.Error(err)
		}
		f.wantRows(1)
	})
}

func TestHang_AfterIsAnsweredAtRelease(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "INSERT", When: faultproxy.After, Do: faultproxy.Hang})
		result := f.async(t.Context(), insert)
		fault.Wait(1)
		f.wantRows(1)
		select {
		case err := <-result:
			t.Errorf("got an answer, error %v, want none before the release", err)
		default:
		}
		f.proxy.Clear()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestHang_EndsWhenTheClientCloses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, when := range []faultproxy.When{faultproxy.Before, faultproxy.After} {
			fault := f.proxy.Inject(faultproxy.Rule{Times: 1, When: when, Do: faultproxy.Hang})
			ctx, cancel := context.WithCancel(t.Context())
			result := f.async(ctx, "DO 0")
			fault.Wait(1)
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
			f.eventually("the server's session ends", func() bool {
				return f.number(f.direct, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()") == 0
			})
		}
	})
}

func TestDelay_DeliversLater(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		const d = 50 * time.Millisecond
		for i, when := range []faultproxy.When{faultproxy.Before, faultproxy.After} {
			f.proxy.Inject(faultproxy.Rule{Contains: "INSERT", Times: 1, When: when, Do: faultproxy.Delay(d)})
			begin := time.Now()
			f.exec(f.through, "INSERT INTO t VALUES (?, ?)", i, "x")
			if took := time.Since(begin); took < d {
				t.Errorf("got an answer after %s, want at least %s", took, d)
			}
			f.wantRows(i + 1)
		}
	})
}

func TestSplitError_LeavesTheTransactionOpen(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		conn, err := f.through.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "COMMIT", Do: faultproxy.SplitError(-1, 1213, "40001", "deadlock")})
		_, err = conn.ExecContext(t.Context(), transaction)
		f.wantCode(err, 1213)
		f.wantHits(fault, 1)
		f.wantRows(0)
		if got := f.number(conn, "SELECT COUNT(*) FROM t"); got != 1 {
			t.Errorf("got %d rows inside the transaction, want 1", got)
		}
		if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		f.wantRows(0)

		// A COMMIT that is sent alone isn't executed either.
		if _, err := conn.ExecContext(t.Context(), "START TRANSACTION; "+insert); err != nil {
			t.Error(err)
		}
		_, err = conn.ExecContext(t.Context(), "COMMIT")
		f.wantCode(err, 1213)
		f.wantHits(fault, 2)
		f.wantRows(0)
	})
}

func TestSplitError_DeliversTheResultsBefore(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.exec(f.through, insert)
		fault := f.proxy.Inject(faultproxy.Rule{Contains: "SELECT 3", Do: faultproxy.SplitError(3, 1053, "08S01", "shutdown")})
		got, err := results(f.through, "SELECT 1; UPDATE t SET v = 'z;'; SELECT v FROM t; SELECT 3; DELETE FROM t")
		f.wantCode(err, 1053)
		if diff := cmp.Diff([]string{"1", "z;"}, got); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		f.wantRows(1)
		f.wantHits(fault, 1)

		// There is no fourth statement.
		if got, err := results(f.through, "SELECT ';'; SELECT 2; SELECT 3"); err != nil || len(got) != 3 {
			t.Errorf("got %q, %v, want three results", got, err)
		}
		// The server's own error, further in front, stands.
		_, err = results(f.through, "SELECT 1; SELECT * FROM missing; SELECT 2; SELECT 3")
		f.wantCode(err, 1146)
		f.wantHits(fault, 1)
	})
}

// results returns all rows of all results, each as one text.
func results(db *sql.DB, text string, args ...any) ([]string, error) {
	rows, err := db.Query(text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for {
		columns, err := rows.Columns()
		if err != nil {
			return all, err
		}
		for rows.Next() {
			values := make([]sql.NullString, len(columns))
			pointers := make([]any, len(columns))
			for i := range values {
				pointers[i] = &values[i]
			}
			if err := rows.Scan(pointers...); err != nil {
				return all, err
			}
			texts := make([]string, len(columns))
			for i, v := range values {
				texts[i] = v.String
				if !v.Valid {
					texts[i] = "NULL"
				}
			}
			all = append(all, strings.Join(texts, ","))
		}
		if !rows.NextResultSet() {
			return all, rows.Err()
		}
	}
}

func TestProxy_PassesResponsesUnharmed(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		for _, text := range []string{
			"SELECT 1",
			"SELECT NULL, '', 'a' UNION ALL SELECT NULL, REPEAT('b', 300), REPEAT('c', 70000)",
			"DELETE FROM t; INSERT INTO t VALUES (1, 'x'), (2, NULL); SELECT * FROM t ORDER BY id; DO 0; SELECT id FROM t WHERE id > 5; SELECT v FROM t WHERE id = 1",
			"SELECT 1; SELECT * FROM missing; SELECT 2",
			"SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'information_schema' ORDER BY 1, 2",
		} {
			want, wantErr := results(f.direct, text)
			got, gotErr := results(f.through, text)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-direct +through):\n%s", text, diff)
			}
			if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Errorf("%s: got error %v, want %v", text, gotErr, wantErr)
			}
		}
		// A prepared statement, which is none of the proxy's business, between two others.
		st, err := f.through.Prepare("SELECT ? + 1")
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		for n := range 3 {
			var got int
			if err := st.QueryRow(n).Scan(&got); err != nil || got != n+1 {
				t.Errorf("got %d, %v, want %d", got, err, n+1)
			}
			f.exec(f.through, "REPLACE INTO t VALUES (?, ?)", n, "it's; a \"test\"\\")
		}
	})
}

func TestProxy_PassesStatementsAndRowsLongerThanAFrame(t *testing.T) {
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			var dsn string
			if name == servers.MySQL97 {
				dsn = servers.Shared(t, name)
			} else { // the shared one takes less
				dsn = servers.Start(t, name, servers.Options{Args: []string{"--max-allowed-packet=64M"}}).DSN()
			}
			f := newFixture(t, dsn)
			const size = 20 << 20
			long := strings.Repeat("x", size)
			if got := f.number(f.through, "SELECT LENGTH(?)", long); got != size {
				t.Errorf("got a statement with %d bytes, want %d", got, size)
			}
			got, err := results(f.through, "SELECT REPEAT('x', ?); SELECT 1", size)
			if err != nil || len(got) != 2 || len(got[0]) != size {
				t.Errorf("got %d rows, %v, want 2, the first of %d bytes", len(got), err, size)
			}
			// What is left has fewer frames than the client counts.
			f.proxy.Inject(faultproxy.Rule{Do: faultproxy.SplitError(1, 1205, "", "")})
			_, err = f.through.Exec("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, ?)", long)
			f.wantCode(err, 1205)
			f.wantRows(1)
		})
	}
}

func TestProxy_PassesAuthentication(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		methods := []string{"BY 'secret'"}
		if strings.Contains(t.Name(), string(servers.MySQL97)) {
			// The second one isn't the server's default, so the server asks for a switch.
			methods = []string{"WITH caching_sha2_password BY 'secret'", "WITH sha256_password BY 'secret'"}
		}
		for i, method := range methods {
			user := fmt.Sprintf("%.10s_%d", strings.TrimPrefix(f.config.DBName, "test_"), i)
			f.exec(f.direct, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED %s", user, method))
			t.Cleanup(func() { f.exec(f.direct, "DROP USER '"+user+"'@'%'") })
			cfg := f.config.Clone()
			cfg.User, cfg.Passwd, cfg.DBName = user, "secret", ""
			for range 2 { // caching_sha2_password: the first time in full, then from the cache
				db := open(t, cfg)
				if got := f.number(db, "SELECT 1"); got != 1 {
					t.Errorf("%s: got %d, want 1", method, got)
				}
			}
			cfg.Passwd = "wrong"
			_, err := open(t, cfg).Exec("DO 0")
			f.wantCode(err, 1045)
		}
	})
}

func TestBlackhole_FreezesUntilItEnds(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		cfg := f.config.Clone()
		cfg.ReadTimeout = 200 * time.Millisecond
		db := open(t, cfg)
		var session int
		f.eventually("a login within the read timeout", func() bool {
			return db.QueryRow("SELECT CONNECTION_ID()").Scan(&session) == nil
		})
		sessions := func() int {
			return f.number(f.direct, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?", session)
		}

		f.proxy.Blackhole(true)
		f.proxy.Blackhole(true)
		if _, err := db.Exec(insert); !errors.Is(err, mysql.ErrInvalidConn) {
			t.Errorf("old connection: got %v, want the read timeout's %v", err, mysql.ErrInvalidConn)
		}
		if err := db.Ping(); err == nil {
			t.Error("new connection: got an answer, want the read timeout")
		}
		f.wantRows(0)
		if got := sessions(); got != 1 {
			t.Errorf("got %d sessions of the client that has gone, want 1", got)
		}

		f.proxy.Blackhole(false)
		f.eventually("what was sent is executed", func() bool { return f.number(f.direct, "SELECT COUNT(*) FROM t") == 1 })
		f.eventually("the session ends", func() bool { return sessions() == 0 })
		if err := f.through.Ping(); err != nil {
			t.Errorf("after the black hole: %v", err)
		}
	})
}

func TestBlackhole_EndsWithTheProxy(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		cfg := f.config.Clone()
		cfg.ReadTimeout = 50 * time.Millisecond
		f.exec(f.through, "DO 0")
		f.proxy.Blackhole(true)
		if err := open(t, cfg).Ping(); err == nil {
			t.Error("got an answer, want the read timeout")
		}
	})
}

func TestRefuseNew_AnswersInPlaceOfTheGreeting(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old, err := f.through.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		for _, code := range []uint16{1040, 1045, 1053} {
			f.proxy.RefuseNew(code)
			_, err := f.through.Exec("DO 0")
			f.wantCode(err, code)
		}
		if got := f.number(old, "SELECT 1"); got != 1 {
			t.Errorf("old connection: got %d, want 1", got)
		}
		f.proxy.RefuseNew(0)
		f.exec(f.through, "DO 0")
	})
}

func TestCutAll_ClosesOldConnectionsOnly(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		old, err := f.through.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		f.proxy.CutAll()
		if _, err := old.ExecContext(t.Context(), "DO 0"); err == nil {
			t.Error("old connection: got an answer, want an error")
		}
		f.exec(f.through, "DO 0")
	})
}

func TestProxy_HandsOnThatTheServerCloses(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		conn, err := f.through.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		session := f.number(conn, "SELECT CONNECTION_ID()")
		result := make(chan error, 1)
		sleeping := f.proxy.Inject(faultproxy.Rule{Contains: "SLEEP", Do: faultproxy.Delay(0)})
		go func() {
			_, err := conn.ExecContext(t.Context(), "DO SLEEP(60)")
			result <- err
		}()
		sleeping.Wait(1)
		f.exec(f.direct, fmt.Sprintf("KILL %d", session))
		if err := <-result; err == nil {
			t.Error("got an answer, want an error")
		}
	})
}

func TestSetBackend_LeadsNewConnectionsElsewhere(t *testing.T) {
	f := newFixture(t, servers.Shared(t, servers.MySQL56))
	other, err := mysql.ParseDSN(servers.Shared(t, servers.MariaDB1011))
	if err != nil {
		t.Fatal(err)
	}
	cfg := f.config.Clone()
	cfg.DBName = ""
	db := open(t, cfg)
	db.SetMaxOpenConns(1)
	version := func() string {
		var v string
		if err := db.QueryRow("SELECT VERSION()").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	first := version()
	f.proxy.SetBackend(other.Addr)
	if got := version(); got != first {
		t.Errorf("old connection: got server %s, want %s", got, first)
	}
	f.proxy.CutAll()
	f.eventually("a connection to the other server", func() bool { return db.Ping() == nil })
	if got := version(); !strings.HasPrefix(got, "10.11.") {
		t.Errorf("new connection: got server %s, want MariaDB 10.11", got)
	}
}

func TestRule_CountsMatches(t *testing.T) {
	f := newFixture(t, servers.Shared(t, servers.MySQL97))
	fail := func(code uint16) faultproxy.Action { return faultproxy.Error(code, "", "") }
	f.proxy.Inject(faultproxy.Rule{Contains: "DO", Nth: 2, Times: 2, Do: fail(1)})
	f.proxy.Inject(faultproxy.Rule{Match: func(s string) bool { return s == "DO 3" || s == "DO 4" }, Do: fail(2)})
	last := f.proxy.Inject(faultproxy.Rule{Contains: "DO", Nth: 6, Do: fail(3)})
	codes := func(n int) []uint16 {
		var got []uint16
		for i := range n {
			_, err := f.through.Exec(fmt.Sprintf("DO %d", i+1))
			me, _ := errors.AsType[*mysql.MySQLError](err)
			if me == nil {
				me = new(mysql.MySQLError)
			}
			got = append(got, me.Number)
		}
		return got
	}
	if diff := cmp.Diff([]uint16{0, 1, 1, 2, 0, 3, 3}, codes(7)); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	last.Release()
	last.Release()
	if diff := cmp.Diff([]uint16{0, 0, 2}, codes(3)); diff != "" {
		t.Errorf("codes after a release (-want +got):\n%s", diff)
	}
	f.proxy.Clear()
	if diff := cmp.Diff([]uint16{0, 0, 0}, codes(3)); diff != "" {
		t.Errorf("codes after all were cleared (-want +got):\n%s", diff)
	}
	if got := f.proxy.Count("DO 3"); got != 3 {
		t.Errorf("got DO 3 counted %d times, want 3", got)
	}
	f.exec(f.through, "DO "+strings.Repeat(" ", 300)+"0")
	lines := strings.Split(strings.TrimSuffix(f.proxy.Log(), "\n"), "\n")
	if got, want := lines[0], `: "DO 1"`; !strings.HasSuffix(got, want) {
		t.Errorf("log begins with %q, want %q", got, want)
	}
	if got := lines[len(lines)-1]; len(got) > 220 || !strings.Contains(got, "DO  ") {
		t.Errorf("log ends with %q, want the first 200 bytes of it", got)
	}
}
