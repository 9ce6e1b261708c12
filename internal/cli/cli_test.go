package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"queued/internal/config"
	"queued/internal/store"
	"queued/job"
)

// ownHandlers are those of the Go program under test.
var ownHandlers = map[string]job.Handler{"go": job.HandlerFunc(func(context.Context, *job.Job) error { return nil })}

// variables that scripts set.
var variables = []string{"QUEUED_CONFIG", "QUEUED_HTTP_LISTEN", "QUEUED_LOG_LEVEL", "QUEUED_PAYLOAD_LIMIT", "QUEUED_WORKER_LEESE"}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"queued": func() {
		p, restore := FromOS()
		p.ConfigFile = "" // this machine's own is not ours to test with
		p.Handlers = ownHandlers
		code := Run(context.Background(), p)
		restore()
		os.Exit(code)
	}})
}

// The scripts are the command line as a user sees it, on the embedded database.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			e.Setenv("LISTEN", l.Addr().String())
			e.Setenv("HOME", e.WorkDir)
			if _, err := os.Stat(filepath.Join(e.WorkDir, "queued.yaml")); err == nil {
				e.Setenv("QUEUED_CONFIG", "queued.yaml")
			}
			return l.Close()
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"cli": cli, "exits": exits, "waitfile": waitfile, "lines": lines,
		},
	})
}

// cli ARG... [<FILE]: the command line runs in this process and ends well. What
// runs in the background is a process of its own: `exec queued ... &`.
func cli(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("use exits CODE")
	}
	exits(ts, false, append([]string{"0"}, args...))
}

// exits CODE ARG... [<FILE]: the same, ending with this exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: exits CODE [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	args = args[1:]
	stdin := ""
	if n := len(args) - 1; n >= 0 && strings.HasPrefix(args[n], "<") {
		stdin, args = ts.ReadFile(args[n][1:]), args[:n]
	}
	p := Process{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: ts.Stdout(), Stderr: ts.Stderr(),
		Dir: ts.MkAbs("."), Handlers: ownHandlers, Environ: []string{"HOME=" + ts.Getenv("HOME")},
	}
	for _, name := range variables {
		if v := ts.Getenv(name); v != "" {
			p.Environ = append(p.Environ, name+"="+v)
		}
	}
	if got := Run(context.Background(), p); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// waitfile FILE: waits until the file is there.
func waitfile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfile FILE")
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
	}
	ts.Fatalf("%s is not there after a minute", args[0])
}

// lines N FORMAT FILE: writes N lines, %d in FORMAT is the number.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: lines N FORMAT FILE")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	var b bytes.Buffer
	for i := range n {
		b.WriteString(strings.ReplaceAll(args[1], "%d", strconv.Itoa(i+1)) + "\n")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), b.Bytes(), 0o600))
}

// run runs a command line in this process.
func run(t *testing.T, dir, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), Process{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Environ: []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, Dir: dir,
	})
	return code, out.String(), errs.String()
}

func TestRun_UsesNothingOfTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, out, errs := run(t, dir, `{"from":"stdin"}`, "enqueue", "hello", "-")
	if code != 0 || out != "job 1\n" || errs != "" {
		t.Fatalf("enqueue: got %d, %q, %q", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, ".local/state/queued/queued.db")); err != nil {
		t.Errorf("the database is not in the home of the injected environment: %v", err)
	}
	code, out, errs = run(t, dir, "", "jobs", "show", "1")
	if code != 0 || !strings.Contains(out, `{"from":"stdin"}`) {
		t.Errorf("show: got %d, %q, %q", code, out, errs)
	}
}

// Defaults in the place of a configuration that can't be read would put jobs into
// another database.
func TestRun_ConfigurationThatCannotBeReadIsNotPassedOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"missing": exitOK, "file/queued.yaml": exitConfig} {
		var out, errs bytes.Buffer
		got := Run(t.Context(), Process{
			Args: []string{"config", "check"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			Environ: []string{"HOME=" + dir}, Dir: dir, ConfigFile: filepath.Join(dir, name),
		})
		if got != want {
			t.Errorf("%s: got exit code %d, want %d: %s%s", name, got, want, out.String(), errs.String())
		}
	}
}

func TestRun_EveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	var visit func(path []string)
	visit = func(path []string) {
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if cmd.Short == "" {
			t.Errorf("%v has no short help", path)
		}
		code, out, errs := run(t, t.TempDir(), "", append(path, "--help")...)
		if code != 0 || errs != "" || !strings.Contains(out, "Usage:") {
			t.Errorf("%v --help: got %d, %q, %q", path, code, out, errs)
		}
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				visit(append(slices.Clip(path), sub.Name()))
			}
		}
	}
	visit(nil)
}

func TestExplain_GivesExitCodeAndWhatToDo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err  error
		code int
		msg  string
	}{
		{errors.New("broken"), 1, "broken"},
		{usagef("no such flag"), 64, "no such flag"},
		{fmt.Errorf("x: %w", &config.Error{Violations: []config.Violation{{Field: "a", Rule: "is bad"}}}), 78, "x: configuration: a: is bad"},
		{fmt.Errorf("x: %w", &store.SchemaError{Have: 0, Want: 1, Hint: "run `queued migrate up`"}), 78, "x: schema is at version 0, this binary needs 1: run `queued migrate up`"},
		{fmt.Errorf("list: %w", store.ErrSchema), 78, "list: database schema does not fit"},
		{fmt.Errorf("list: %w", store.ErrDenied), 1, "list: database access denied; check user, password and privileges; `queued config print` shows what is used"},
		{fmt.Errorf("list: %w", store.ErrUnavailable), 1, "list: database unavailable; is it up, and is it the right one? `queued config print` shows where it is looked for"},
		{fmt.Errorf("list: %w", context.Canceled), 1, "interrupted: list: context canceled"},
		{busyError{errors.New("another one")}, 75, "another one"},
		{partError{}, 1, ""},
	}
	for _, tt := range tests {
		if code, msg := explain(tt.err); code != tt.code || msg != tt.msg {
			t.Errorf("%v: got %d %q, want %d %q", tt.err, code, msg, tt.code, tt.msg)
		}
	}
}

// Text of jobs comes from anywhere; nothing of it may steer the terminal.
func TestPlain_ShowsWhatCouldSteerATerminal(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"größe 日本", "größe 日本"},
		{"\x1b[2Jgone", `\x1b[2Jgone`},
		{"a\nb\tc", `a\nb\tc`},
		{`say "hi"` + "\r", `say "hi"\r`},
		{"\u202eevil", `\u202eevil`},
		{"bad\xff", "bad\xff"},
	}
	for _, tt := range tests {
		if got := plain(tt.in); got != tt.want {
			t.Errorf("plain(%q): got %q, want %q", tt.in, got, tt.want)
		}
	}
	if got, want := block("one\n\x1b[31mtwo\n"), "  one\n  \\x1b[31mtwo\n"; got != want {
		t.Errorf("block: got %q, want %q", got, want)
	}
}

func TestEnqueueFile_InterruptedSaysWhatIsIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	// The second batch is only read once the first is in, and ends the command.
	in := &lineReader{line: `{"kind": "a"}` + "\n", cancelAfter: enqueueBatch + 10, cancel: cancel}
	var out, errs bytes.Buffer
	code := Run(ctx, Process{Args: []string{"enqueue", "--file", "-"}, Stdin: in, Stdout: &out, Stderr: &errs, Environ: []string{"HOME=" + dir}, Dir: dir})
	if code != 1 || out.String() != "500 new, 0 known already, 0 refused\n" {
		t.Errorf("got %d, %q, want 1 and the first batch", code, out.String())
	}
	if want := "interrupted: context canceled; all before line 501 is done, the rest is not in\n"; !strings.HasSuffix(errs.String(), want) {
		t.Errorf("got %q, want …%q", errs.String(), want)
	}
}

// lineReader gives the same line again and again, one a read.
type lineReader struct {
	line        string
	n           int
	cancelAfter int
	cancel      func()
}

func (r *lineReader) Read(p []byte) (int, error) {
	if r.n++; r.n == r.cancelAfter {
		r.cancel()
	}
	return copy(p, r.line), nil
}
