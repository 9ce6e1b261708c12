package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"queued/internal/admin"
	"queued/internal/config"
	"queued/internal/store"
	"queued/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// syncBuffer collects a log.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// instance is a daemon under test.
type instance struct {
	cfg      *config.Config
	log      syncBuffer
	signals  chan os.Signal
	notified chan string
	ended    chan error
	err      error
	over     bool
}

// testConfig is a quick configuration of the embedded database.
func testConfig(t *testing.T) *config.Config {
	t.Helper()
	c, _, err := config.Load(config.Sources{Dir: t.TempDir(), Flags: map[string]string{
		"database.path": "q.db", "http.listen": "127.0.0.1:0", "worker.poll_interval": "5ms",
		"worker.lease": "3s", "worker.heartbeat": "100ms", "log.format": "json",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs a daemon with Go handlers; the test's end stops it.
func start(t *testing.T, cfg *config.Config, handlers map[string]job.HandlerFunc, change ...func(*Options)) *instance {
	t.Helper()
	in := &instance{cfg: cfg, signals: make(chan os.Signal, 2), notified: make(chan string, 20), ended: make(chan error, 1)}
	log := NewLogger(cfg.Log, &in.log, false)
	own := map[string]job.Handler{}
	for k, h := range handlers {
		own[k] = h
	}
	r, err := Registry(cfg, own, log)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Config: cfg, Handlers: r, Build: admin.Build{Version: "test"}, Log: log, Signals: in.signals,
		Notify: func(s string) { in.notified <- s },
	}
	for _, c := range change {
		c(&o)
	}
	go func() { in.ended <- Run(context.WithoutCancel(t.Context()), o) }()
	t.Cleanup(func() {
		if !in.over {
			in.signals <- syscall.SIGTERM
			in.signals <- syscall.SIGTERM
			if err := in.wait(t); err != nil {
				t.Errorf("the daemon ended with %v", err)
			}
		}
		if t.Failed() {
			t.Logf("log:\n%s", in.log.String())
		}
	})
	return in
}

func (in *instance) wait(t *testing.T) error {
	t.Helper()
	if in.over {
		return in.err
	}
	select {
	case in.err = <-in.ended:
	case <-time.After(time.Minute):
		t.Fatalf("the daemon has not ended; log:\n%s", in.log.String())
	}
	in.over = true
	return in.err
}

// logged waits for a line of the log and returns what the groups of the pattern hold.
func (in *instance) logged(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if m := re.FindStringSubmatch(in.log.String()); m != nil {
			return m
		}
	}
	t.Fatalf("no %q in the log:\n%s", pattern, in.log.String())
	return nil
}

func (in *instance) url(t *testing.T) string {
	t.Helper()
	return in.logged(t, `"metrics":"(http://[^"/]+)/metrics"`)[1]
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

// open opens the daemon's database beside it.
func open(t *testing.T, cfg *config.Config) store.Store {
	t.Helper()
	s, err := OpenStore(cfg, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.MigrateUp(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func enqueue(t *testing.T, s store.Store, jobs ...job.New) []int64 {
	t.Helper()
	got, err := s.Enqueue(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, len(got))
	for i, e := range got {
		ids[i] = e.ID
	}
	return ids
}

func TestRun_RunsJobsAndStopsWhenAsked(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s := open(t, cfg)
	ran := make(chan string, 1)
	in := start(t, cfg, map[string]job.HandlerFunc{"hello": func(_ context.Context, j *job.Job) error {
		ran <- string(j.Payload)
		return nil
	}})
	id := enqueue(t, s, job.New{Kind: "hello", Payload: []byte(`{"a":1}`)})[0]
	if got := <-ran; got != `{"a":1}` {
		t.Errorf("payload: got %s", got)
	}
	url := in.url(t)
	if code, body := get(t, url+"/readyz"); code != 200 {
		t.Errorf("/readyz: got %d %s", code, body)
	}
	if code, body := get(t, url+"/healthz"); code != 200 {
		t.Errorf("/healthz: got %d %s", code, body)
	}
	daemons, err := s.LiveDaemons(t.Context())
	if err != nil || len(daemons) != 1 || daemons[0].PID != os.Getpid() || !cmp.Equal(daemons[0].Kinds, []string{"hello"}) {
		t.Errorf("live daemons: got %+v, %v, want this process", daemons, err)
	}
	in.signals <- syscall.SIGTERM
	if err := in.wait(t); err != nil {
		t.Errorf("got error %v, want none", err)
	}
	j, err := s.GetJob(t.Context(), id)
	if err != nil || j.State != job.Done {
		t.Errorf("job: got %+v, %v, want it done", j, err)
	}
	if daemons, err := s.LiveDaemons(t.Context()); err != nil || len(daemons) != 0 {
		t.Errorf("live daemons after the stop: got %+v, %v, want none", daemons, err)
	}
	close(in.notified)
	var said []string
	for n := range in.notified {
		first, _, _ := strings.Cut(n, "\n")
		said = append(said, first)
	}
	want := []string{"READY=1", "STATUS=Running.", "STOPPING=1", "STOPPING=1"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	if strings.Contains(in.log.String(), `{\"a\":1}`) {
		t.Error("the payload is in the log")
	}
}

func TestRun_SecondSignalCancelsRunningJobs(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s := open(t, cfg)
	started, cause := make(chan struct{}), make(chan error, 1)
	in := start(t, cfg, map[string]job.HandlerFunc{"long": func(ctx context.Context, _ *job.Job) error {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}})
	id := enqueue(t, s, job.New{Kind: "long"})[0]
	<-started
	in.signals <- syscall.SIGINT
	in.logged(t, "asked to stop")
	in.signals <- syscall.SIGINT
	if err := in.wait(t); err != nil {
		t.Errorf("got error %v, want none", err)
	}
	if got := <-cause; !errors.Is(got, job.ErrShutdown) {
		t.Errorf("the handler was cancelled with %v, want ErrShutdown", got)
	}
	j, err := s.GetJob(t.Context(), id)
	if err != nil || j.State != job.Ready || j.Attempts != 0 {
		t.Errorf("job: got %+v, %v, want it ready with its attempt given back", j, err)
	}
}

func TestRun_DrainEndsWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s := open(t, cfg)
	ids := enqueue(t, s, job.New{Kind: "a"}, job.New{Kind: "a"}, job.New{Kind: "a", Delay: time.Hour})
	in := start(t, cfg, map[string]job.HandlerFunc{"a": func(context.Context, *job.Job) error { return nil }}, func(o *Options) { o.Drain = true })
	if err := in.wait(t); err != nil {
		t.Fatal(err)
	}
	for i, want := range []job.State{job.Done, job.Done, job.Ready} {
		if j, err := s.GetJob(t.Context(), ids[i]); err != nil || j.State != want {
			t.Errorf("job %d: got %s, %v, want %s", i, j.State, err, want)
		}
	}
}

func TestRun_LeavesAfterMaxJobs(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Worker.MaxJobs = 3
	s := open(t, cfg)
	for range 10 {
		enqueue(t, s, job.New{Kind: "a"})
	}
	in := start(t, cfg, map[string]job.HandlerFunc{"a": func(context.Context, *job.Job) error { return nil }})
	if err := in.wait(t); err != nil {
		t.Fatal(err)
	}
	done, err := s.ListJobs(t.Context(), store.JobFilter{State: job.Done, Limit: 100})
	if err != nil || len(done) != 3 {
		t.Errorf("got %d done jobs, %v, want 3", len(done), err)
	}
}

func TestRun_TakenPortIsAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t)
	cfg.HTTP.Listen = l.Addr().String()
	in := start(t, cfg, nil)
	err = in.wait(t)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("got error %v, want EADDRINUSE with what to do", err)
	}
}

// A server that is away is no failed start, and the daemon can be stopped all the same.
func TestRun_WaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Database = config.Database{Host: "127.0.0.1", Port: 1, Name: "q", User: "u", Password: "geheim", Claim: "auto", MaxConnections: 2, Timeout: time.Second}
	in := start(t, cfg, nil)
	in.logged(t, "waiting for the database")
	url := in.url(t)
	if code, body := get(t, url+"/healthz"); code != 200 {
		t.Errorf("/healthz: got %d %s, want 200: no restart would help", code, body)
	}
	code, body := get(t, url+"/readyz")
	var answer struct{ Reasons []string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 503 || len(answer.Reasons) != 1 || !strings.HasPrefix(answer.Reasons[0], "waiting for the database: ") {
		t.Errorf("/readyz: got %d %s, want 503 and why", code, body)
	}
	if n := <-in.notified; !strings.HasPrefix(n, "READY=1") {
		t.Errorf("first notification: got %q, want READY=1", n)
	}
	in.signals <- syscall.SIGTERM
	if err := in.wait(t); err != nil {
		t.Errorf("got error %v, want none", err)
	}
	if strings.Contains(in.log.String()+body, "geheim") {
		t.Error("the password is shown")
	}
}

func TestRun_RefusesASchemaOfANewerVersion(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	open(t, cfg)
	exec(t, cfg, "INSERT INTO schema_migrations (version, name, applied_at) VALUES (9999, 'future', 0)")
	in := start(t, cfg, nil)
	if err := in.wait(t); !errors.Is(err, store.ErrSchema) {
		t.Errorf("got error %v, want ErrSchema", err)
	}
}

func TestAlive_NamesALoopThatDoesNotTurn(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	d := &daemon{Options: Options{Config: cfg}}
	d.setPhase("waiting for the database")
	if got := d.Alive(); got != nil {
		t.Errorf("while it waits: got %v, want nothing", got)
	}
	d.setPhase("")
	d.pool.Store(stuckPool(t, cfg))
	d.working = time.Now()
	if got := d.Alive(); got != nil {
		t.Errorf("just started: got %v, want nothing", got)
	}
	d.working = time.Now().Add(-time.Hour)
	want := []string{"claim loop has not turned for 1h0m0s", "lease loop has not turned for 1h0m0s"}
	if diff := cmp.Diff(want, d.Alive()); diff != "" {
		t.Errorf("after an hour without a turn (-want +got):\n%s", diff)
	}
	d.setPhase("stopping")
	if got := d.Alive(); got != nil {
		t.Errorf("while it stops: got %v, want nothing", got)
	}
}

func TestStopStack_TakesAllStepsInReverseAndJoinsErrors(t *testing.T) {
	t.Parallel()
	s := stopStack{log: zap.NewNop()}
	var order []string
	for _, name := range []string{"a", "b", "c"} {
		s.push(name, func(context.Context) error {
			order = append(order, name)
			if name == "b" {
				return nil
			}
			return fmt.Errorf("%s is broken", name)
		})
	}
	err := s.run(t.Context())
	if diff := cmp.Diff([]string{"c", "b", "a"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if want := "stop c: c is broken\nstop a: a is broken"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

func TestStopStack_LoopThatDoesNotEndIsNotWaitedForBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	s := stopStack{log: zap.NewNop()}
	release := make(chan struct{})
	stopped := false
	s.push("first", func(context.Context) error { stopped = true; return nil })
	s.loop("stuck", func(context.Context) { <-release })
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("took too long")
	cancel(cause)
	if err := s.run(ctx); !errors.Is(err, cause) {
		t.Errorf("got error %v, want %v", err, cause)
	}
	if !stopped {
		t.Error("the step below the stuck one was not taken")
	}
	close(release)
}

func TestLock_HoldsUntilItIsClosed(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	f, err := Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(name)
	var held *LockedError
	if !errors.As(err, &held) || held.PID != fmt.Sprint(os.Getpid()) {
		t.Errorf("second lock: got error %v, want a LockedError with this process", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = Lock(name); err != nil {
		t.Fatalf("lock after the close: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRegistry_NamesEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Kinds = []config.Kind{
		{Name: "a", Handler: config.HandlerGo},
		{Name: "b", Handler: config.HandlerExec, Exec: config.Exec{Command: []string{"true"}, Env: []string{"QUEUED_X=1"}}},
		{Name: "c", Handler: config.HandlerLog},
	}
	_, err := Registry(cfg, map[string]job.Handler{"d": job.HandlerFunc(nil)}, zap.NewNop())
	if err == nil || !strings.Contains(err.Error(), `kind "a"`) || !strings.Contains(err.Error(), `kind "b"`) {
		t.Errorf("got error %v, want both a and b in it", err)
	}
	cfg.Kinds = cfg.Kinds[2:]
	if _, err := Registry(cfg, map[string]job.Handler{"c": job.HandlerFunc(nil)}, zap.NewNop()); err == nil {
		t.Error("a kind with two handlers: got no error")
	}
}

func TestRegistry_GoHandlerTakesThePolicyOfItsEntry(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Kinds = []config.Kind{{Name: "a", Handler: config.HandlerGo, Policy: job.Policy{MaxAttempts: 17}}}
	h := job.HandlerFunc(func(context.Context, *job.Job) error { return nil })
	r, err := Registry(cfg, map[string]job.Handler{"a": h, "b": h}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]int{"a": 17, "b": cfg.Defaults.MaxAttempts} {
		if _, p, ok := r.Lookup(kind); !ok || p.MaxAttempts != want {
			t.Errorf("kind %s: got %d attempts, %v, want %d", kind, p.MaxAttempts, ok, want)
		}
	}
}

func TestNewLogger_JSONUnlessItIsATerminal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		format   string
		terminal bool
		want     string
	}{
		{"auto", false, `^{"level":"info","time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","message":"hello","job_id":4,"took":"1.5s"}\n$`},
		{"json", true, `^{"level":"info",`},
		{"auto", true, `^\d\d:\d\d:\d\d\.\d{3} \x1b\[34mINFO\x1b\[0m hello {"job_id": 4, "took": "1.5s"}\n$`},
		{"console", false, `^\d\d:\d\d:\d\d\.\d{3} INFO hello {`},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		log := NewLogger(config.Log{Format: tt.format, Level: "info"}, &b, tt.terminal)
		log.Debug("not logged")
		log.Info("hello", zap.Int64("job_id", 4), zap.Duration("took", 1500*time.Millisecond))
		if !regexp.MustCompile(tt.want).MatchString(b.String()) {
			t.Errorf("%s, terminal %v: got %q, want %s", tt.format, tt.terminal, b.String(), tt.want)
		}
	}
}

func TestNewOwner_IsPositiveAndNeverTwice(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	for range 1000 {
		n := newOwner()
		if n <= 0 || seen[n] {
			t.Fatalf("got %d", n)
		}
		seen[n] = true
	}
}
