// Package servers gives tests the real MySQL and MariaDB servers.
//
// A test that only needs a server takes a shared one, and a database of its own on it:
//
//	dsn := servers.Database(t, servers.Shared(t, servers.MySQL97))
//
// A test that kills, stops or freezes its server starts a private one:
//
//	s := servers.Start(t, servers.MariaDB105, servers.Options{Durable: true})
//	dsn := servers.Database(t, s.DSN())
//	s.Kill()
//	s.Restart()
//
// How the servers are fetched, initialised and run is written down once, in servers.sh
// beside this file; this package calls it. Only tests may import the package.
package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

//go:embed servers.sh
var script string

// Name is a kind of server, as servers.sh calls it.
type Name string

// The servers. MySQL97 and MariaDB1011 know SKIP LOCKED; MySQL56 and MariaDB105 don't.
const (
	MySQL97     Name = "mysql97"
	MySQL56     Name = "mysql56"
	MariaDB1011 Name = "mariadb1011"
	MariaDB105  Name = "mariadb105"
)

// All is every server there is.
var All = []Name{MySQL97, MySQL56, MariaDB1011, MariaDB105}

const (
	// startTimeout bounds a start, recovery after a kill included. It is long because
	// packages are tested side by side on few cores.
	startTimeout = 2 * time.Minute
	// newTimeout bounds the making of a data directory. Where nothing is installed yet it
	// includes the installation.
	newTimeout = 10 * time.Minute
	// stopTimeout is how long a server has after TERM before KILL.
	stopTimeout  = 30 * time.Second
	pauseTimeout = 10 * time.Second
	dropTimeout  = 30 * time.Second
	// portTries is how many ports Start tries: between the choice of a port and the start,
	// another process may take it.
	portTries = 5
)

// Env is the environment variable with the address of the shared server.
func (n Name) Env() string { return "QUEUED_TEST_" + strings.ToUpper(string(n)) }

// Shared returns the DSN, without a database, of the shared server of that name. It fails
// the test when there is none: a skip would look like a pass.
func Shared(tb testing.TB, n Name) string {
	tb.Helper()
	dsn := os.Getenv(n.Env())
	if dsn == "" {
		tb.Fatalf("%s is not set: run `make test`, or start the servers with `test/servers/servers.sh up` "+
			"and take their addresses with `eval \"$(test/servers/servers.sh env)\"`", n.Env())
	}
	return dsn
}

// Database creates a database with a fresh name, utf8mb4 with the server's own default
// collation, and returns the DSN that selects it. dsn may name another database, which is
// left alone. The database is dropped when the test ends.
func Database(tb testing.TB, dsn string) string {
	tb.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		tb.Fatalf("servers: %v", err)
	}
	name := "test_" + strings.ToLower(rand.Text()[:16])
	admin := cfg.Clone()
	admin.DBName = ""
	if err := execOnce(admin, startTimeout, "CREATE DATABASE `"+name+"` CHARACTER SET utf8mb4"); err != nil {
		tb.Fatalf("servers: create a database on %s: %v", cfg.Addr, err)
	}
	tb.Cleanup(func() {
		// What the test left open may hold a metadata lock, and the server may be down by
		// now. Neither is this function's business to fail for: the database goes with
		// its server.
		err := execOnce(admin, dropTimeout, "SET lock_wait_timeout = 5", "DROP DATABASE IF EXISTS `"+name+"`")
		if err != nil {
			tb.Logf("servers: database %s on %s stays: %v", name, cfg.Addr, err)
		}
	})
	cfg.DBName = name
	return cfg.FormatDSN()
}

// execOnce runs the statements on one new connection.
func execOnce(cfg *mysql.Config, timeout time.Duration, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	db, err := open(cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// open is sql.Open without the driver's own log, which writes to standard error.
func open(cfg *mysql.Config) (*sql.DB, error) {
	cfg = cfg.Clone()
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Options of a private server.
type Options struct {
	// Durable makes every commit reach the disk: the data is on disk instead of in memory,
	// and the redo log and the binary log are synced at each commit.
	Durable bool
	// Args are further arguments of the server. They win over what servers.sh sets.
	Args []string
}

// Server is a private instance. Its methods fail the test when something goes wrong, so
// they belong into the goroutine of the test. They may be called in any order; what is
// already so is left so.
type Server struct {
	tb     testing.TB
	name   Name
	dir    string
	port   int
	args   []string
	mu     sync.Mutex
	run    *run // nil while the server is down
	paused bool
}

// run is one life of the server's process.
type run struct {
	process *os.Process
	done    chan struct{} // closed when the process is gone
	err     error         // how it ended, once done is closed
}

// Start starts a private server on an empty data directory and waits until it answers. The
// server and its data are gone when the test ends, however it ends.
func Start(tb testing.TB, n Name, opts Options) *Server {
	tb.Helper()
	s := &Server{tb: tb, name: n}
	kind := "memory"
	if opts.Durable {
		kind = "disk"
		s.args = append(s.args, "--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
	}
	s.args = append(s.args, opts.Args...)

	for try := 1; ; try++ {
		if err := s.create(kind); err != nil {
			tb.Fatalf("servers: %s: %v", n, err)
		}
		err := s.start()
		if err == nil {
			break
		}
		report := fmt.Sprintf("%v\n%s", err, s.logTail())
		s.remove()
		if try == portTries || !strings.Contains(report, "Address already in use") {
			tb.Fatalf("servers: %s: %s", n, report)
		}
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("servers: %s, end of its log:\n%s", n, s.logTail())
		}
		s.remove()
	})
	return s
}

// create makes the data directory and chooses the port.
func (s *Server) create(kind string) error {
	ctx, cancel := context.WithTimeout(context.Background(), newTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script, "servers.sh", "new", string(s.name), kind, strconv.Itoa(os.Getpid()))
	var out, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &progress
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("servers.sh new: %w\n%s", err, progress.String())
	}
	if _, err := fmt.Sscanf(out.String(), "%s %d", &s.dir, &s.port); err != nil {
		return fmt.Errorf("servers.sh new printed %q: %w", out.String(), err)
	}
	return nil
}

// start starts the process and waits until the server answers.
func (s *Server) start() error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-c", script, "servers.sh", "start", string(s.name), filepath.Join(s.dir, "data"), strconv.Itoa(s.port), s.Socket()}
	cmd := exec.Command("bash", append(args, s.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	r := &run{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the process ends, so the
		// thread has to stay for as long as the process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		r.process = cmd.Process
		started <- err
		if err == nil {
			r.err = cmd.Wait()
			close(r.done)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.run, s.paused = r, false
	return s.answers(r)
}

// answers waits until a login works.
func (s *Server) answers(r *run) error {
	cfg, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return err
	}
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = 2*time.Second, 5*time.Second, 5*time.Second
	db, err := open(cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	deadline := time.After(startTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := db.Ping()
		if err == nil {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("the server ended while starting: %w", errors.Join(r.err, err))
		case <-deadline:
			return fmt.Errorf("no answer on %s within %s: %w", s.Addr(), startTimeout, err)
		case <-tick.C:
		}
	}
}

// DSN returns the data source name for root, without a database.
func (s *Server) DSN() string { return "root@tcp(" + s.Addr() + ")/" }

// Addr returns host and port. They stay the same over restarts.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Socket returns the path of the Unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "socket") }

// Kill ends the server with SIGKILL, as a crash does, and waits for its end.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	if s.run == nil {
		return
	}
	_ = s.run.process.Kill() // an error means that it is gone
	<-s.run.done
	s.run = nil
}

// Stop shuts the server down with SIGTERM and waits for its end. A paused server is
// resumed first.
func (s *Server) Stop() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return
	}
	s.resume()
	_ = s.run.process.Signal(syscall.SIGTERM) // an error means that it is gone
	select {
	case <-s.run.done:
		s.run = nil
	case <-time.After(stopTimeout):
		s.kill()
		s.tb.Fatalf("servers: %s did not stop within %s\n%s", s.name, stopTimeout, s.logTail())
	}
}

// Restart starts the server again on the same data and the same port, and waits until it
// answers. A server that still runs is stopped first.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(); err != nil {
		s.tb.Fatalf("servers: %s does not come back: %v\n%s", s.name, err, s.logTail())
	}
}

// Pause freezes the server with SIGSTOP: connections stay open, and nothing answers. When it
// returns, every thread of the server stands still.
func (s *Server) Pause() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		s.tb.Fatalf("servers: %s is down, it can't be paused", s.name)
	}
	if err := s.run.process.Signal(syscall.SIGSTOP); err != nil {
		s.tb.Fatalf("servers: pause %s: %v", s.name, err)
	}
	s.paused = true
	// The signal only asks: on a busy machine a thread may go on for a while.
	deadline := time.Now().Add(pauseTimeout)
	for !stopped(s.run.process.Pid) {
		if time.Now().After(deadline) {
			s.tb.Fatalf("servers: %s still runs %s after SIGSTOP", s.name, pauseTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// stopped tells whether all threads of the process are stopped.
func stopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			return false
		}
		// "PID (COMMAND) STATE ...", and the command may hold anything.
		rest := stat[bytes.LastIndexByte(stat, ')')+1:]
		if !bytes.HasPrefix(rest, []byte(" T ")) {
			return false
		}
	}
	return true
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume()
}

func (s *Server) resume() {
	if s.run != nil && s.paused {
		_ = s.run.process.Signal(syscall.SIGCONT) // an error means that it is gone
		s.paused = false
	}
}

// remove ends the server and deletes its data.
func (s *Server) remove() {
	s.Kill()
	if err := os.RemoveAll(s.dir); err != nil {
		s.tb.Logf("servers: %v", err)
	}
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// logTail returns the last lines of the server's log.
func (s *Server) logTail() string {
	const size = 4096
	f, err := os.Open(s.logFile())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > size {
		if _, err := f.Seek(-size, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	tail, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(tail)
}
