package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("TEST_GODAEMON") != "" {
		main()
	}
	os.Exit(m.Run())
}

// The program has queued's command line, and runs its own kind.
func TestGodaemon_RunsItsOwnKind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queued.db")
	godaemon := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "--database", file)...)
		// Not the environment of the tests: QUEUED_ variables are configuration.
		cmd.Env = []string{"HOME=" + filepath.Dir(file), "TEST_GODAEMON=1", "QUEUED_HTTP_LISTEN=off"}
		cmd.Dir = filepath.Dir(file)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return string(out)
	}
	godaemon("enqueue", "greet", `{"name": "Ada"}`)
	godaemon("enqueue", "greet", `{}`)
	if got, want := godaemon("run", "--drain"), "Hello, Ada! (job 1, attempt 1)\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := godaemon("dead", "list", "--json"); !strings.Contains(got, "nobody to greet") {
		t.Errorf("got dead letters %q, want the job without a name", got)
	}
}
