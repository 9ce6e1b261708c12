// Package producers_test runs the clients in other languages against real servers.
package producers_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	mysqlstore "queued/internal/store/mysql"
	"queued/test/servers"
	"queued/test/zones"
)

// given is what a producer is asked to do; see producer.php.
type given struct {
	Host     string   `json:"host"`
	Port     int      `json:"port"`
	User     string   `json:"user"`
	Password string   `json:"password"`
	Database string   `json:"database"`
	Table    string   `json:"table"`
	Zone     string   `json:"zone"`
	Flavour  int      `json:"flavour"` // 0 or 1, two ways to use the language's driver
	Init     []string `json:"init"`
	Jobs     []given1 `json:"jobs"`
	SQL      []string `json:"sql"`
	Local    int64    `json:"local"` // an instant, to be written as the language's local time
	Commit   bool     `json:"commit"`
}

type given1 struct {
	Kind    string         `json:"kind"`
	Payload any            `json:"payload"`
	Options map[string]any `json:"options"`
}

// languages start a producer whose process has the time zone.
var languages = map[string]func(t *testing.T, zone string) *exec.Cmd{
	"php": func(t *testing.T, _ string) *exec.Cmd { return exec.CommandContext(t.Context(), "php", "producer.php") },
	"python": func(t *testing.T, zone string) *exec.Cmd {
		return inZone(exec.CommandContext(t.Context(), "/usr/bin/python3", "producer.py"), zone)
	},
	"node": func(t *testing.T, zone string) *exec.Cmd {
		home := os.Getenv("QUEUED_PRODUCERS_HOME")
		if home == "" {
			cache, err := os.UserCacheDir()
			if err != nil {
				t.Fatal(err)
			}
			home = filepath.Join(cache, "queued", "producers")
		}
		cmd := inZone(exec.CommandContext(t.Context(), "node", "producer.js"), zone)
		cmd.Env = append(cmd.Env, "PRODUCERS_HOME="+home)
		return cmd
	},
}

func inZone(cmd *exec.Cmd, zone string) *exec.Cmd {
	cmd.Env = append(os.Environ(), "TZ="+zone)
	return cmd
}

func produce(t *testing.T, language string, g given) []any {
	t.Helper()
	in, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	cmd := languages[language](t, g.Zone)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v (is everything there? see test/producers/install.sh)\n%s", language, err, stderr.Bytes())
	}
	var results []any
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("%s: %v: %s\n%s", language, err, out, stderr.Bytes())
	}
	return results
}

// setUp makes a database with queued's tables, and a user that may do no more than a producer needs.
func setUp(t *testing.T, server servers.Name) (*sql.DB, given) {
	t.Helper()
	dsn := servers.Database(t, servers.Shared(t, server))
	st, err := mysqlstore.Open(mysqlstore.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := st.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", dsn+"?time_zone=%27%2B00:00%27")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	zones.Load(t, db, "Europe/Berlin", "America/St_Johns")

	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	g := given{Host: host, Database: cfg.DBName, User: cfg.DBName[len(cfg.DBName)-12:], Password: "a 'producer's \"password", Table: cfg.DBName + ".jobs"}
	if g.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	admin, err := sql.Open("mysql", dsn+"?interpolateParams=true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	exec("CREATE USER '"+g.User+"'@'%' IDENTIFIED BY ?", g.Password)
	t.Cleanup(func() { exec("DROP USER '" + g.User + "'@'%'") })
	exec("GRANT INSERT ON `" + cfg.DBName + "`.jobs TO '" + g.User + "'@'%'")
	return db, g
}

func TestProducers_WriteTheContractInEveryTimeZone(t *testing.T) {
	// A server's clock in summer, and in the hour that comes twice in Berlin.
	moments := []time.Time{
		time.Date(2027, 7, 1, 12, 0, 0, 123e6, time.UTC),
		time.Date(2027, 10, 31, 0, 30, 0, 250e6, time.UTC),
	}
	payload := map[string]any{"text": "é 👨‍👩‍👧 \" \\ '", "list": []any{1.5, nil, true}}
	for _, server := range servers.All {
		t.Run(string(server), func(t *testing.T) {
			db, base := setUp(t, server)
			for language := range languages {
				for i, zone := range []string{"Europe/Berlin", "America/St_Johns", "Asia/Kolkata"} {
					t.Run(language+" "+strings.ReplaceAll(zone, "/", " "), func(t *testing.T) {
						now := moments[0]
						if server != servers.MySQL56 && zone == "Europe/Berlin" {
							// MySQL 5.6 can't say all instants of that hour in that zone.
							now = moments[1]
						}
						at := now.Add(time.Hour)
						g := base
						g.Zone, g.Flavour, g.Commit = zone, i%2, true
						session := zone
						if zone == "Asia/Kolkata" {
							session = "+05:30" // as servers without zone tables have it
						}
						g.Init = []string{"SET time_zone = '" + session + "'", fmt.Sprintf("SET timestamp = %d.%03d", now.Unix(), now.Nanosecond()/1e6)}
						g.Local = moments[0].Unix()
						key := language + zone
						g.Jobs = []given1{
							{"bare", nil, map[string]any{"table": g.Table}},
							{"full", payload, map[string]any{
								"table": g.Table, "key": key, "queue": "mail", "priority": 9, "max_attempts": 3, "timeout": 1.5,
								"at": at.UnixMilli(), "expires_at": at.UnixMilli() + 1,
							}},
							{"again", nil, map[string]any{"table": g.Table, "key": key}},
							{"later", []any{}, map[string]any{"table": g.Table, "delay": 3600.0015}},
							{"nowhere", nil, map[string]any{"table": g.Database + ".no_jobs", "key": "k"}},
						}
						g.SQL = []string{
							"INSERT INTO " + g.Table + " (kind) VALUES ('sql')",
						}
						if now.Equal(moments[0]) {
							g.SQL = append(g.SQL, "INSERT INTO "+g.Table+" (kind, available_at) VALUES ('sql now', NOW()), ('sql soon', NOW() + INTERVAL 30 MINUTE)")
						}
						results := produce(t, language, g)
						if len(results) != len(g.Jobs) {
							t.Fatalf("got results %v for %d jobs", results, len(g.Jobs))
						}
						var ids []string
						for _, r := range results {
							if id, ok := r.(float64); ok {
								var kind string
								if err := db.QueryRowContext(t.Context(), "SELECT kind FROM jobs WHERE id = ?", int64(id)).Scan(&kind); err != nil {
									t.Errorf("the returned id %v: %v", id, err)
								}
								r = kind
							}
							ids = append(ids, fmt.Sprint(r))
						}
						// 1142: the table is not there, or the user may not know whether it is.
						if d := cmp.Diff([]string{"bare", "full", "<nil>", "later", "error 1142"}, ids); d != "" {
							t.Errorf("results (-want +got):\n%s", d)
						}

						ms := func(t time.Time) int64 { return t.UnixMilli() }
						want := []string{
							fmt.Sprintf("bare default - - 0 - - %d - %d", ms(now), ms(now)),
							fmt.Sprintf("full mail %s %s 9 3 1500 %d %d %d", key, payloadText(t, payload), ms(at), ms(at)+1, ms(now)),
							fmt.Sprintf("later default - [] 0 - - %d - %d", ms(now)+3600_002, ms(now)),
							fmt.Sprintf("sql default - - 0 - - %d - %d", ms(now), ms(now)),
						}
						if now.Equal(moments[0]) {
							second := ms(now.Truncate(time.Second))
							want = append(want, fmt.Sprintf("sql now default - - 0 - - %d - %d", second, ms(now)),
								fmt.Sprintf("sql soon default - - 0 - - %d - %d", second+30*60_000, ms(now)))
						}
						want = append(want, fmt.Sprintf("local default - - 0 - - %d - %d", g.Local*1000, ms(now)))
						if d := cmp.Diff(want, rows(t, db)); d != "" {
							t.Errorf("rows (-want +got):\n%s", d)
						}
						if _, err := db.ExecContext(t.Context(), "DELETE FROM jobs"); err != nil {
							t.Fatal(err)
						}
					})
				}
				t.Run(language+" rolls back", func(t *testing.T) {
					g := base
					g.Zone = "Europe/Berlin"
					g.Jobs = []given1{{"k", nil, map[string]any{"table": g.Table, "key": "k"}}}
					g.SQL, g.Init = []string{}, []string{}
					produce(t, language, g)
					if got := rows(t, db); len(got) > 0 {
						t.Errorf("got %v after a rollback, want none", got)
					}
				})
			}
		})
	}
}

// payloadText is v in the form that rows gives.
func payloadText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rows are the rows of jobs as text, times in milliseconds since 1970.
func rows(t *testing.T, db *sql.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT kind, queue, COALESCE(idempotency_key, '-'), COALESCE(payload, 'null'), priority, COALESCE(max_attempts, '-'),
		COALESCE(timeout_ms, '-'), CAST(UNIX_TIMESTAMP(available_at) * 1000 AS SIGNED), COALESCE(CAST(UNIX_TIMESTAMP(expires_at) * 1000 AS SIGNED), '-'),
		CAST(UNIX_TIMESTAMP(created_at) * 1000 AS SIGNED) FROM jobs ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		f := make([]string, 10)
		ptrs := make([]any, len(f))
		for i := range f {
			ptrs[i] = &f[i]
		}
		if err := rows.Scan(ptrs...); err != nil {
			t.Fatal(err)
		}
		// A JSON column orders keys its own way.
		var payload any
		if err := json.Unmarshal([]byte(f[3]), &payload); err != nil {
			t.Errorf("payload %q: %v", f[3], err)
		}
		f[3] = "-"
		if payload != nil {
			f[3] = payloadText(t, payload)
		}
		lines = append(lines, strings.Join(f, " "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
