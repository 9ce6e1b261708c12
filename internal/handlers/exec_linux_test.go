package handlers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"queued/job"
)

func TestMain(m *testing.M) {
	if os.Getenv("TEST_EXEC_HELPER") != "" {
		helper()
		return
	}
	goleak.VerifyTestMain(m)
}

// helper is a process that runs a job and waits to be killed.
func helper() {
	h, err := newExec(Exec{Command: sh("echo $$ > pid; exec sleep 300"), Dir: os.Getenv("TEST_EXEC_HELPER")}, job.Policy{}, zap.NewNop())
	if err != nil {
		panic(err)
	}
	_, _ = h.Run(context.Background(), testJob())
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// run is a run of a command under test.
type run struct {
	result string
	err    error
	logs   *observer.ObservedLogs
	dir    string
}

// runExec runs c in a directory of its own. Nothing of the run may be left in /proc
// afterwards, whatever the command did.
func runExec(ctx context.Context, t *testing.T, c Exec, j *job.Job) run {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	r := run{logs: logs, dir: t.TempDir()}
	c.Dir = r.dir
	mark := fmt.Sprintf("TEST_MARK_%d", time.Now().UnixNano())
	c.Env = append(slices.Clone(c.Env), mark+"=1")
	h, err := newExec(c, job.Policy{MaxAttempts: 9}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	r.result, r.err = h.Run(ctx, j)
	left := processes(func(pid int) bool {
		env, _ := os.ReadFile(procFile(pid, "environ"))
		return strings.Contains(string(env), mark)
	})
	for _, pid := range left {
		cmdline, _ := os.ReadFile(procFile(pid, "cmdline"))
		t.Errorf("process %d is left: %q", pid, cmdline)
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	return r
}

// cutOff returns a context that is cancelled with cause as soon as the file exists.
func cutOff(t *testing.T, cause error, file *string) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := os.Stat(*file); err == nil {
				cancel(cause)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(nil); <-done })
	return ctx
}

// outcome is what the domain makes of the run's error.
func outcome(err, cause error) job.State {
	w, ok := job.Decide(testJob(), "", err, cause, job.Policy{MaxAttempts: 9, Timeout: time.Minute}, func() float64 { return 0 })
	if !ok {
		return ""
	}
	return w.To
}

func TestExec_PayloadAndEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	t.Setenv("QUEUED_DATABASE_PASSWORD", "secret")
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials")
	t.Setenv("UNRELATED", "x")
	t.Setenv("WANTED", "w")
	t.Setenv("TZ", "Asia/Tokyo")
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer cancel()
	r := runExec(ctx, t, Exec{Command: sh("cat; echo; env | sort"), Env: []string{"OWN=o"}, PassEnv: []string{"WANTED"}}, testJob())
	if r.err != nil {
		t.Fatal(r.err)
	}
	payload, env, _ := strings.Cut(r.result, "\n")
	if payload != `{"a":1}` {
		t.Errorf("got payload %q", payload)
	}
	var got []string
	for line := range strings.SplitSeq(env, "\n") {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case name == "QUEUED_RUN_ID", name == "QUEUED_DEADLINE":
			got = append(got, name) // never the same
		case name == "HOME", name == "LANG", name == "PATH", name == "PWD", name == "OLDPWD", name == "SHLVL", name == "_":
		case strings.HasPrefix(name, "TEST_MARK_"):
		default:
			got = append(got, line)
		}
	}
	want := []string{
		"OWN=o", "QUEUED_ATTEMPT=2", "QUEUED_DEADLINE", "QUEUED_JOB_ID=17", "QUEUED_JOB_KEY=order-1", "QUEUED_KIND=k", "QUEUED_MAX_ATTEMPTS=9",
		"QUEUED_QUEUE=mail", "QUEUED_RUN_ID", "TZ=Asia/Tokyo", "WANTED=w",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
}

func TestExec_ExitCodes(t *testing.T) {
	for _, c := range []struct {
		exec Exec
		code int
		want job.State
	}{
		{Exec{}, 0, job.Done},
		{Exec{}, 1, job.Ready},
		{Exec{}, 65, job.Dead},
		{Exec{}, 75, job.Ready},
		{Exec{}, 255, job.Ready},
		{Exec{DoneCodes: []int{0, 3}, PermanentCodes: []int{4}}, 3, job.Done},
		{Exec{DoneCodes: []int{0, 3}, PermanentCodes: []int{4}}, 4, job.Dead},
		{Exec{DoneCodes: []int{0, 3}, PermanentCodes: []int{4}}, 65, job.Ready},
	} {
		c.exec.Command = sh(fmt.Sprintf("echo out; echo why >&2; exit %d", c.code))
		r := runExec(t.Context(), t, c.exec, testJob())
		if got := outcome(r.err, nil); got != c.want {
			t.Errorf("exit %d: got %s (%v), want %s", c.code, got, r.err, c.want)
		}
		if c.want == job.Done {
			if r.result != "out" {
				t.Errorf("exit %d: got result %q, want standard output", c.code, r.result)
			}
			continue
		}
		has(t, r.err, fmt.Sprintf("exit status %d: why", c.code))
	}
}

func TestExec_DeathByASignalIsRetried(t *testing.T) {
	for sig, want := range map[string]string{
		"KILL": "killed by signal 9 (out of memory?)",
		"SEGV": "killed by signal 11 (segmentation fault)",
		"TERM": "killed by signal 15 (terminated)",
	} {
		r := runExec(t.Context(), t, Exec{Command: sh("kill -" + sig + " $$")}, testJob())
		has(t, r.err, want)
		if got := outcome(r.err, nil); got != job.Ready {
			t.Errorf("%s: got %s, want %s", sig, got, job.Ready)
		}
	}
	r := runExec(t.Context(), t, Exec{Command: sh("sh -c 'kill -KILL $$'; exit $?")}, testJob())
	has(t, r.err, "exit status 137", "out of memory?")
}

func TestExec_WhatCantBeStartedIsAFailedAttempt(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, command := range map[string][]string{
		`"queued-no-such-command": executable file not found`: {"queued-no-such-command"},
		"no such file":      {"/no/such/command"},
		"permission denied": {plain},
	} {
		r := runExec(t.Context(), t, Exec{Command: command}, testJob())
		has(t, r.err, "start the command", want)
		if got := outcome(r.err, nil); got != job.Ready {
			t.Errorf("%v: got %s, want %s", command, got, job.Ready)
		}
	}
}

func TestExec_ArgumentsThatAreTooLongArePermanent(t *testing.T) {
	r := runExec(t.Context(), t, Exec{Command: []string{"/bin/true", strings.Repeat("x", 3<<20)}}, testJob())
	has(t, r.err, "argument list too long")
	if got := outcome(r.err, nil); got != job.Dead {
		t.Errorf("got %s, want %s", got, job.Dead)
	}
}

func TestExec_NoRoomToStartIsNotTheJobsFault(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	for _, e := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE} {
		err := startError(&os.PathError{Op: "fork/exec", Path: "/bin/true", Err: e}, zap.New(core))
		w, _ := job.Decide(testJob(), "", err, nil, job.Policy{MaxAttempts: 1}, nil)
		if w.To != job.Ready || !w.Uncount || w.Delay != busyDelay {
			t.Errorf("%v: got %+v, want the job back with its attempt", e, w)
		}
	}
	if logs.Len() != 3 {
		t.Errorf("got %d log lines, want 3", logs.Len())
	}
}

func TestExec_StandardInputMayStayUnread(t *testing.T) {
	j := testJob()
	j.Payload = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	for _, script := range []string{"exit 0", "exec <&-; echo closed", "head -c 10 >/dev/null"} {
		if r := runExec(t.Context(), t, Exec{Command: sh(script)}, j); r.err != nil {
			t.Errorf("%s: %v", script, r.err)
		}
	}
	r := runExec(t.Context(), t, Exec{Command: sh("wc -c")}, j)
	if got := strings.TrimSpace(r.result); got != strconv.Itoa(1<<20+2) {
		t.Errorf("the command read %s bytes, want %d (%v)", got, 1<<20+2, r.err)
	}
}

func TestExec_ANULInTheKeyIsPermanent(t *testing.T) {
	j := testJob()
	j.Key = "a\x00b"
	r := runExec(t.Context(), t, Exec{Command: sh("exit 0")}, j)
	has(t, r.err, "QUEUED_JOB_KEY", "NUL")
	if got := outcome(r.err, nil); got != job.Dead {
		t.Errorf("got %s, want %s", got, job.Dead)
	}
}

func TestExec_NoShellSeesTheArguments(t *testing.T) {
	r := runExec(t.Context(), t, Exec{Command: []string{"printf", "%s|", "$HOME", "; echo x", "`id`"}}, testJob())
	if want := "$HOME|; echo x|`id`|"; r.result != want {
		t.Errorf("got %q, want %q", r.result, want)
	}
}

func TestExec_OddOutputIsMadeText(t *testing.T) {
	r := runExec(t.Context(), t, Exec{Command: sh(`printf 'a\000b\377c\n'; printf 'no end' >&2`)}, testJob())
	if want := "a\uFFFDb\uFFFDc"; r.result != want {
		t.Errorf("got result %q, want %q", r.result, want)
	}
	got := map[string]string{}
	for _, e := range r.logs.FilterMessage("output of job").All() {
		m := e.ContextMap()
		got[fmt.Sprint(m["stream"])] = fmt.Sprint(m["line"], " ", m["job_id"], " ", m["attempt"])
	}
	if d := cmp.Diff(map[string]string{"stdout": "a\uFFFDb\uFFFDc 17 2", "stderr": "no end 17 2"}, got); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

func TestExec_OutputIsLoggedAtTheConfiguredLevel(t *testing.T) {
	for level, want := range map[string][]zapcore.Level{"": {zapcore.InfoLevel}, "debug": {zapcore.DebugLevel}, "off": nil} {
		r := runExec(t.Context(), t, Exec{Command: sh("echo x"), LogOutput: level}, testJob())
		var got []zapcore.Level
		for _, e := range r.logs.All() {
			got = append(got, e.Level)
		}
		if d := cmp.Diff(want, got); d != "" || r.result != "x" {
			t.Errorf("%q: result %q, levels (-want +got):\n%s", level, r.result, d)
		}
	}
}

func TestExec_AFloodIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := runExec(t.Context(), t, Exec{Command: sh("yes $(printf %0199d 7) | head -c 200000000; head -c 3000000 /dev/zero >&2; echo; echo end")}, testJob())
	if r.err != nil {
		t.Fatal(r.err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d MiB were allocated for the output", grown>>20)
	}
	if len(r.result) > job.ResultLimit || !strings.HasSuffix(r.result, "07\n\nend") || !strings.HasPrefix(r.result, "… (cut)") {
		t.Errorf("got a result of %d bytes that ends in %q, want the tail, marked as cut", len(r.result), r.result[max(len(r.result)-20, 0):])
	}
	if n := r.logs.Len(); n < lineBurst || n > lineBurst+lineRate*30 {
		t.Errorf("got %d log lines, want about %d", n, lineBurst)
	}
	last := r.logs.All()[r.logs.Len()-1]
	if last.Message != "output of job: lines not logged" || last.ContextMap()["lines"].(int64) < 900_000 {
		t.Errorf("got last line %q %v, want the count of the rest", last.Message, last.ContextMap())
	}
}

func TestExec_TimeoutEndsTheWholeGroup(t *testing.T) {
	file := ""
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"plain", "touch up; exec sleep 300", []string{"timeout exceeded", "killed by signal 15"}},
		{"last words", "trap 'echo bye >&2; exit 3' TERM; touch up; while :; do sleep 0.01; done", []string{"timeout exceeded: exit status 3", "bye"}},
		{"clean exit", "trap 'exit 0' TERM; touch up; while :; do sleep 0.01; done", []string{"timeout exceeded: exit status 0"}},
		{"ignores TERM", "trap '' TERM; touch up; while :; do sleep 0.01; done", []string{"timeout exceeded: killed by signal 9"}},
		{"child holds the pipe", "sleep 300 & touch up; wait", []string{"timeout exceeded"}},
		{"child ignores TERM", "(trap '' TERM; touch up; while :; do sleep 0.01; done) & wait", []string{"timeout exceeded"}},
		{"left the group", "setsid sh -c 'touch up; exec sleep 300' & wait", []string{"timeout exceeded"}},
		{"left the group twice", "setsid sh -c 'setsid sleep 300 & touch up; exec sleep 300' & wait", []string{"timeout exceeded"}},
		{"stopped", "touch up; kill -STOP $$; exit 0", []string{"timeout exceeded"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file = filepath.Join(dir, "up")
			ctx := cutOff(t, job.ErrTimeout, &file)
			script := "cd '" + dir + "'; " + c.script
			r := runExec(ctx, t, Exec{Command: sh(script), KillGrace: 300 * time.Millisecond}, testJob())
			has(t, r.err, c.want...)
			if got := outcome(r.err, job.ErrTimeout); got != job.Ready {
				t.Errorf("got %s, want %s", got, job.Ready)
			}
		})
	}
}

func TestExec_ChildrenHaveTheGraceTimeToo(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "up")
	ctx := cutOff(t, job.ErrShutdown, &file)
	script := "cd '" + dir + "'; (trap 'sleep 0.2; touch saved; exit' TERM; touch up; while :; do sleep 0.01; done) & wait"
	r := runExec(ctx, t, Exec{Command: sh(script), KillGrace: time.Minute}, testJob())
	has(t, r.err, job.ErrShutdown.Error())
	if _, err := os.Stat(filepath.Join(dir, "saved")); err != nil {
		t.Errorf("the child was killed before it had saved its work: %v", err)
	}
}

func TestExec_EveryCauseEndsTheRun(t *testing.T) {
	for cause, want := range map[error]job.State{job.ErrTimeout: job.Ready, job.ErrShutdown: job.Ready, job.ErrLeaseLost: "", job.ErrCancelled: ""} {
		file := filepath.Join(t.TempDir(), "up")
		r := runExec(cutOff(t, cause, &file), t, Exec{Command: sh("touch '" + file + "'; exec sleep 300")}, testJob())
		has(t, r.err, cause.Error())
		if got := outcome(r.err, cause); got != want {
			t.Errorf("%v: got %q, want %q", cause, got, want)
		}
	}
}

func TestExec_ARunWhoseTimeIsOverDoesNotStart(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(job.ErrShutdown)
	r := runExec(ctx, t, Exec{Command: sh("touch started")}, testJob())
	if _, err := os.Stat(filepath.Join(r.dir, "started")); err == nil || !errors.Is(r.err, job.ErrShutdown) {
		t.Errorf("got %v and a start (%v), want the cause and none", r.err, err == nil)
	}
}

func TestExec_WhatACommandLeavesBehindIsKilled(t *testing.T) {
	for _, script := range []string{
		"sleep 300 & echo x",
		"(trap '' TERM HUP; sleep 300) & echo x",
		"sleep 300 >/dev/null 2>&1 </dev/null & echo x",
		"(sleep 300 & sleep 300 &) ; echo x",
	} {
		begin := time.Now()
		r := runExec(t.Context(), t, Exec{Command: sh(script)}, testJob())
		if r.err != nil || r.result != "x" {
			t.Errorf("%s: got %q, %v, want x", script, r.result, r.err)
		}
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("%s: took %s", script, d)
		}
	}
}

func TestExec_ADaemonThatHoldsThePipeIsReportedAndDoesNotHang(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	h, err := newExec(Exec{Command: sh("setsid sh -c 'touch up; exec sleep 300' & echo x; until [ -e up ]; do sleep 0.01; done"), Dir: t.TempDir()}, job.Policy{}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	result, err := h.Run(t.Context(), testJob())
	if err != nil || result != "x" {
		t.Errorf("got %q, %v, want x", result, err)
	}
	reports := logs.FilterMessage("processes of the job live on and hold its output").All()
	if len(reports) != 1 {
		t.Fatalf("got %d reports, want 1: %v", len(reports), logs.All())
	}
	pids, _ := reports[0].ContextMap()["pids"].([]any)
	if len(pids) != 1 {
		t.Fatalf("got pids %v, want one", pids)
	}
	p, err := os.FindProcess(pids[0].(int))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("kill the reported process: %v", err)
	}
}

func TestExec_TheCommandDiesWithTheDaemon(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_EXEC_HELPER="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var pid int
	for pid == 0 {
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		if state := stateOf(pid); state == "" || state == "Z" {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func stateOf(pid int) string {
	f, err := os.Open(procFile(pid, "status"))
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "State:"); ok {
			return strings.TrimSpace(rest)[:1]
		}
	}
	return ""
}

func TestExec_ManyAtOnce(t *testing.T) {
	h, err := newExec(Exec{Command: sh("cat"), LogOutput: "off"}, job.Policy{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	const n = 50
	for i := range n {
		go func() {
			j := testJob()
			j.Payload = []byte(strconv.Itoa(i))
			got, err := h.Run(t.Context(), j)
			if err == nil && got != strconv.Itoa(i) {
				err = fmt.Errorf("got %q, want %d", got, i)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestExec_ConfigurationIsChecked(t *testing.T) {
	valid := Exec{Command: []string{"/bin/true"}, Dir: "/", Env: []string{"A=b=c"}, PassEnv: []string{"B"}, DoneCodes: []int{0}, PermanentCodes: []int{65}, KillGrace: time.Second, LogOutput: "debug"}
	if _, err := newExec(valid, job.Policy{}, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Exec){
		"command: must not be empty":        func(c *Exec) { c.Command = nil },
		"command: must not have a NUL":      func(c *Exec) { c.Command = []string{"/bin/true", "\x00"} },
		"dir: must be absolute":             func(c *Exec) { c.Dir = "x" },
		`"NOTIFY_SOCKET" belongs`:           func(c *Exec) { c.PassEnv = []string{"NOTIFY_SOCKET"} },
		`"QUEUED_DATABASE_DSN" belongs`:     func(c *Exec) { c.PassEnv = []string{"QUEUED_DATABASE_DSN"} },
		`"QUEUED_JOB_ID" belongs`:           func(c *Exec) { c.Env = []string{"QUEUED_JOB_ID=1"} },
		`env: entry 1 must be NAME=value`:   func(c *Exec) { c.Env = []string{"=1"} },
		`env: entry 2 must be NAME=value`:   func(c *Exec) { c.Env = []string{"B=", "A"} },
		`pass_env: "A=B" is no name`:        func(c *Exec) { c.PassEnv = []string{"A=B"} },
		`env: "A" has a NUL`:                func(c *Exec) { c.Env = []string{"A=\x00"} },
		"exit code 256: must be between":    func(c *Exec) { c.DoneCodes = []int{256} },
		"exit code 65: must not be both":    func(c *Exec) { c.DoneCodes = []int{65} },
		"kill_grace: must be between 0 and": func(c *Exec) { c.KillGrace = -1 },
		`log_output: must be "info", "debu`: func(c *Exec) { c.LogOutput = "loud" },
	} {
		c := valid
		change(&c)
		_, err := newExec(c, job.Policy{}, zap.NewNop())
		has(t, err, want)
	}
}
