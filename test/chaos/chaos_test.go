// Package chaos kills, stops and cuts off the real binary and the real servers,
// and looks at what became of the jobs.
package chaos

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	driversql "github.com/go-sql-driver/mysql"
	_ "modernc.org/sqlite" // for looking at the embedded store as a stranger does

	"queued/internal/store"
	"queued/internal/store/mysql"
	"queued/internal/store/sqlite"
	"queued/job"
	"queued/test/servers"
)

var binary string // of queued, built once

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "queued-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	binary = filepath.Join(dir, "queued")
	if out, err := exec.Command("go", "build", "-race", "-o", binary, "queued/cmd/queued").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// place is a store with its tables, and how daemons and strangers reach it.
type place struct {
	dir    string // of this test
	store  store.Store
	db     *sql.DB // a stranger's
	config string  // the daemons' database section
	mysql  bool
}

// eachPlace runs fn on MySQL with SKIP LOCKED, on MySQL 5.6 with CAS and on the
// embedded store.
func eachPlace(t *testing.T, fn func(t *testing.T, p *place)) {
	for _, n := range []servers.Name{servers.MySQL97, servers.MySQL56} {
		t.Run(string(n), func(t *testing.T) { fn(t, onServer(t, servers.Shared(t, n))) })
	}
	t.Run("sqlite", func(t *testing.T) { fn(t, embedded(t)) })
}

// onServer makes a schema on a server, and a user with the daemon's privileges only.
func onServer(t *testing.T, dsn string) *place {
	t.Helper()
	dsn = servers.Database(t, dsn)
	cfg, err := driversql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mysql.Open(mysql.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	p := &place{dir: t.TempDir(), store: s, mysql: true}
	cfg.MultiStatements = true
	c, err := driversql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.db = sql.OpenDB(c)
	p.ready(t)
	user := "chaos" + strconv.FormatUint(rand.Uint64()>>36, 36)
	for _, text := range []string{
		fmt.Sprintf("CREATE USER '%s'@'127.0.0.1' IDENTIFIED BY 'sesame'", user),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON `%s`.* TO '%s'@'127.0.0.1'", cfg.DBName, user),
	} {
		p.exec(t, text)
	}
	t.Cleanup(func() { p.exec(t, fmt.Sprintf("DROP USER '%s'@'127.0.0.1'", user)) })
	password := filepath.Join(p.dir, "password")
	if err := os.WriteFile(password, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(cfg.Addr, ":")
	p.config = fmt.Sprintf("  host: %s\n  port: %s\n  user: %s\n  password_file: %s\n  name: %s\n  timeout: 2s\n", host, port, user, password, cfg.DBName)
	return p
}

func embedded(t *testing.T) *place {
	t.Helper()
	p := &place{dir: t.TempDir()}
	path := filepath.Join(p.dir, "queued.db")
	s, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.store = s
	if p.db, err = sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)"); err != nil {
		t.Fatal(err)
	}
	p.config = fmt.Sprintf("  path: %s\n  timeout: 10s\n", path)
	p.ready(t)
	return p
}

// ready makes the tables, and a trigger that refuses to see a job finished twice.
func (p *place) ready(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.store.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
		if err := p.db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := p.store.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	p.exec(t, "CREATE TABLE finished (job_id BIGINT NOT NULL PRIMARY KEY)")
	if p.mysql {
		p.exec(t, "CREATE TRIGGER once AFTER UPDATE ON jobs FOR EACH ROW BEGIN IF NEW.status = 'done' AND OLD.status <> 'done' THEN INSERT INTO finished VALUES (NEW.id); END IF; END")
	} else {
		p.exec(t, "CREATE TRIGGER once AFTER UPDATE ON jobs WHEN NEW.status = 'done' AND OLD.status <> 'done' BEGIN INSERT INTO finished VALUES (NEW.id); END")
	}
}

func (p *place) exec(t *testing.T, text string, args ...any) {
	t.Helper()
	if _, err := p.db.ExecContext(context.Background(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func (p *place) count(t *testing.T, text string, args ...any) (n int) {
	t.Helper()
	if err := p.db.QueryRowContext(t.Context(), text, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// enqueue puts n jobs in, with keys of their own.
func (p *place) enqueue(t *testing.T, kind string, n int) {
	t.Helper()
	for lo := 0; lo < n; lo += 500 {
		var jobs []job.New
		for i := lo; i < min(lo+500, n); i++ {
			jobs = append(jobs, job.New{Kind: kind, Key: fmt.Sprintf("%s-%d", kind, i)})
		}
		if _, err := p.store.Enqueue(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until what is wanted holds, which must happen within d.
func eventually(t *testing.T, d time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %s", what, d)
		}
	}
}

// settings are the daemons'. Each job's script notes its start and end in a file.
type settings struct {
	lease, heartbeat string
	maxAttempts      int
	script           string // of kind "work"; $1 is the file
}

var quick = settings{lease: "2s", heartbeat: "500ms", maxAttempts: 1000}

const noteScript = `echo "start $QUEUED_JOB_ID $QUEUED_ATTEMPT" >> "$1"
%s
echo "end $QUEUED_JOB_ID $QUEUED_ATTEMPT" >> "$1"
`

func (p *place) notes() string { return filepath.Join(p.dir, "notes") }

// daemon is one process.
type daemon struct {
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan error // the process's end
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a daemon; whatever is left of it at the end is killed.
func (p *place) start(t *testing.T, s settings, args ...string) *daemon {
	t.Helper()
	script := filepath.Join(p.dir, "work.sh")
	// Written once: a shell of an earlier daemon may be reading it.
	if _, err := os.Stat(script); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(script, fmt.Appendf(nil, noteScript, s.script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(p.dir, "queued.yaml")
	text := fmt.Sprintf(`database:
%squeues:
  - {name: default, workers: 8}
kinds:
  - {name: work, handler: exec, command: [/bin/sh, %s, %s], max_attempts: %d, timeout: 1m, backoff: {base: 50ms, cap: 200ms}}
worker: {lease: %s, heartbeat: %s, shutdown_timeout: 10s, cancel_grace: 6s}
reaper: {interval: 200ms, grace: 100ms}
http: {listen: "127.0.0.1:0"}
log: {format: json, level: info}
`, p.config, script, p.notes(), s.maxAttempts, s.lease, s.heartbeat)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{cmd: exec.Command(binary, append([]string{"--config", config, "run"}, args...)...), log: &lockedBuffer{}, done: make(chan error, 1)}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir} // variables that begin with QUEUED_ are settings
	d.cmd.WaitDelay = time.Second                                      // scripts that outlive it hold the pipe
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.done <- d.cmd.Wait() }()
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			log := d.log.String()
			t.Logf("log of daemon %d:\n%s", d.cmd.Process.Pid, log[max(0, len(log)-8000):])
		}
	})
	return d
}

func (d *daemon) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal %s: %v", sig, err)
	}
}

// kill ends the process as a power cut does.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended already
	err := <-d.done
	d.done <- err
}

// alive fails the test when the process has ended.
func (d *daemon) alive(t *testing.T) {
	t.Helper()
	select {
	case err := <-d.done:
		d.done <- err
		t.Fatalf("daemon %d has exited: %v", d.cmd.Process.Pid, err)
	default:
	}
}

// stop asks it to stop and wants exit code 0.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.signal(t, syscall.SIGTERM)
	err := <-d.done
	d.done <- nil
	if err != nil {
		t.Errorf("daemon %d stopped with %v, want exit code 0", d.cmd.Process.Pid, err)
	}
}

// reconcile compares the rows of n jobs of kind "work" with what their scripts noted.
func (p *place) reconcile(t *testing.T, n int) {
	t.Helper()
	if done, all := p.count(t, "SELECT COUNT(*) FROM jobs WHERE status = 'done'"), p.count(t, "SELECT COUNT(*) FROM jobs"); done != n || all != n {
		t.Errorf("got %d done of %d jobs, want %d of %d", done, all, n, n)
	}
	if dead := p.count(t, "SELECT COUNT(*) FROM dead_jobs"); dead != 0 {
		t.Errorf("got %d dead letters, want none", dead)
	}
	if finished := p.count(t, "SELECT COUNT(*) FROM finished"); finished != n {
		t.Errorf("got %d jobs finished once, want %d", finished, n)
	}
	attempts := map[string]int{}
	rows, err := p.db.QueryContext(t.Context(), "SELECT id, attempts FROM jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() // rows.Err says it
	for rows.Next() {
		var id string
		var a int
		if err := rows.Scan(&id, &a); err != nil {
			t.Fatal(err)
		}
		attempts[id] = a
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.notes())
	if err != nil {
		t.Fatal(err)
	}
	starts, ends, seen := map[string]int{}, map[string]int{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("note %q is torn", line)
		}
		if seen[line] {
			t.Errorf("%q happened twice: one attempt was run by two workers", strings.TrimSpace(line))
		}
		seen[line] = true
		if f[0] == "start" {
			starts[f[1]]++
		} else {
			ends[f[1]]++
		}
	}
	for id, a := range attempts {
		if starts[id] > a || ends[id] < 1 {
			t.Errorf("job %s: got %d starts and %d ends in %d attempts, want starts <= attempts and an end", id, starts[id], ends[id], a)
		}
	}
}
