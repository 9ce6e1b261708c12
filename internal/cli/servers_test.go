package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"queued/test/servers"
)

// A job's way from the schema to the replay of its dead letter, on every server.
func TestCommands_OnEveryServer(t *testing.T) {
	t.Parallel()
	for _, name := range servers.All {
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(file, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("dsn", servers.Database(t, servers.Shared(t, name)))
			write("c.yaml", `
database: {dsn_file: dsn, table_prefix: q_}
kinds:
  - {name: hello, handler: log}
  - {name: fail, handler: exec, command: [sh, -c, "exit 65"]}
`)
			for _, step := range []struct {
				args   string
				code   int
				stdout string // part of it
				stderr string
			}{
				{"jobs list", 78, "", "run `queued migrate up`"},
				{"run --drain", 78, "", "run `queued migrate up`"},
				{"migrate print", 0, "CREATE TABLE", ""},
				{"migrate up", 0, "applied 1 init", ""},
				{"migrate status", 0, "applied", ""},
				{"enqueue hello --key k", 0, "job 1\n", ""},
				{"enqueue hello --key k", 0, "job 1 has this key already", ""},
				{"enqueue fail", 0, "job ", ""},
				{"run --drain", 0, "", `"reason":"no due job left"`},
				{"jobs list --state done", 0, " hello ", ""},
				{"dead replay --kind fail --yes", 0, "1 dead letter replayed", ""},
				{"jobs list --kind fail --state ready", 0, " fail ", ""},
				{"stats", 0, "claims with ", ""},
				{"migrate down --to 0 --yes", 0, "undone 1 init", ""},
			} {
				code, out, errs := run(t, dir, "", append([]string{"--config", "c.yaml"}, strings.Fields(step.args)...)...)
				if code != step.code || !strings.Contains(out, step.stdout) || !strings.Contains(errs, step.stderr) {
					t.Fatalf("queued %s: got %d\n%s%s\nwant %d, %q, %q", step.args, code, out, errs, step.code, step.stdout, step.stderr)
				}
			}
		})
	}
}
