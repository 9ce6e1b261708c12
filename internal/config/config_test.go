package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"queued/job"
)

var update = flag.Bool("update", false, "write the generated files")

// load reads text as the file of a configuration.
func load(t *testing.T, text string, environ ...string) (*Config, Origins, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "queued.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Sources{File: "queued.yaml", Dir: dir, Environ: append([]string{"HOME=/home/ann"}, environ...)})
}

func mustLoad(t *testing.T, text string, environ ...string) *Config {
	t.Helper()
	c, _, err := load(t, text, environ...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// violations are those of an error, as text.
func violations(t *testing.T, err error) []string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want an *Error", err)
	}
	list := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		list[i] = v.String()
	}
	return list
}

func TestLoad_WithoutSourcesIsDefault(t *testing.T) {
	t.Parallel()
	got, origins, err := Load(Sources{Environ: []string{"HOME=/home/ann"}, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Database.Path = "/home/ann/.local/state/queued/queued.db"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(origins) != 0 {
		t.Errorf("origins: got %v, want none", origins)
	}
}

func TestSample_IsCurrentAndDefault(t *testing.T) {
	t.Parallel()
	current(t, "../../configs/queued.yaml", Sample())
	got := mustLoad(t, Sample())
	want := Default()
	want.Database.Path = "/home/ann/.local/state/queued/queued.db"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReference_IsCurrent(t *testing.T) {
	t.Parallel()
	current(t, "../../docs/configuration.md", Reference())
}

func current(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not current, run go generate ./internal/config (-want +got):\n%s", file, diff)
	}
}

// The example of a kind in the sample is commented out; uncommented it must work.
func TestSample_ExampleKindIsValid(t *testing.T) {
	t.Parallel()
	_, kinds, found := strings.Cut(Sample(), "kinds: []\n")
	kinds, _, _ = strings.Cut(kinds, "\n\n")
	if !found {
		t.Fatal("the sample has no kinds")
	}
	var lines []string
	for line := range strings.SplitSeq(kinds, "\n") {
		lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(line, "# "), "#"))
	}
	c := mustLoad(t, strings.Join(lines, "\n"))
	want := []Kind{{
		Name: "mail", Handler: HandlerExec,
		Policy: job.Policy{MaxAttempts: 5, Timeout: 10 * time.Minute, Backoff: job.Backoff{
			Base: 10 * time.Second, Cap: time.Hour, Jitter: 0.2,
			Schedule: []time.Duration{2 * time.Minute, 10 * time.Minute, 30 * time.Minute, 2 * time.Hour},
		}},
		Exec: Exec{
			Command: []string{"/usr/local/bin/send-mail", "--verbose"}, Dir: "/var/lib/app",
			Env: []string{"APP_ENV=production"}, PassEnv: []string{"APP_TOKEN"},
			DoneCodes: []int{0}, PermanentCodes: []int{65}, KillGrace: 5 * time.Second, LogOutput: "info",
		},
	}}
	if diff := cmp.Diff(want, c.Kinds); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// other values than the default for every option, and what must be set beside it.
var otherValues = map[string]struct{ value, beside string }{
	"payload_limit":             {"2MiB", ""},
	"database.dsn":              {"u:p@tcp(h:3306)/s", ""},
	"database.dsn_file":         {"FILE", ""},
	"database.host":             {"db.example.org", "name: q"},
	"database.port":             {"3307", "host: h, name: q"},
	"database.socket":           {"/run/mysqld/mysqld.sock", "name: q"},
	"database.user":             {"ann", "host: h, name: q"},
	"database.password":         {"secret", "host: h, name: q"},
	"database.password_file":    {"FILE", "host: h, name: q"},
	"database.name":             {"q", "host: h"},
	"database.tls":              {"required", "host: h, name: q"},
	"database.tls_ca":           {"/etc/ca.pem", "host: h, name: q"},
	"database.tls_cert":         {"/etc/cert.pem", "host: h, name: q, tls_key: /etc/key.pem"},
	"database.tls_key":          {"/etc/key.pem", "host: h, name: q, tls_cert: /etc/cert.pem"},
	"database.path":             {"/srv/q.db", ""},
	"database.table_prefix":     {"q_", "host: h, name: q"},
	"database.claim":            {"cas", "host: h, name: q"},
	"database.max_connections":  {"20", ""},
	"database.timeout":          {"3s", ""},
	"defaults.max_attempts":     {"7", ""},
	"defaults.timeout":          {"1h30m", ""},
	"defaults.backoff.base":     {"1s", ""},
	"defaults.backoff.cap":      {"2d", ""},
	"defaults.backoff.jitter":   {"0.5", ""},
	"worker.poll_interval":      {"75ms", ""},
	"worker.lease":              {"1m", ""},
	"worker.heartbeat":          {"3s", ""},
	"worker.shutdown_timeout":   {"5m", ""},
	"worker.cancel_grace":       {"7s", ""},
	"worker.unknown_kind_grace": {"1h", ""},
	"worker.max_jobs":           {"500", ""},
	"worker.max_jobs_spread":    {"0.1", ""},
	"reaper.interval":           {"1s", ""},
	"reaper.grace":              {"2s", ""},
	"retention.done":            {"7d", ""},
	"retention.dead":            {"0", ""},
	"http.listen":               {"[::1]:80", ""},
	"log.format":                {"json", ""},
	"log.level":                 {"debug", ""},
}

func TestLoad_EveryScalarFromFileAndFromEnvironment(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("u:p@tcp(h)/s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(otherValues) != len(options) {
		t.Errorf("the test knows %d options, there are %d", len(otherValues), len(options))
	}
	for _, o := range options {
		t.Run(o.key, func(t *testing.T) {
			t.Parallel()
			other, ok := otherValues[o.key]
			if !ok {
				t.Fatal("the test has no value for this option")
			}
			value := strings.Replace(other.value, "FILE", secret, 1)
			if value == format(o.ptr(Default())) {
				t.Fatalf("the test's value %q is the default", value)
			}
			section, key, nested := strings.Cut(o.key, ".")
			beside := func(more string) string { // the section with what must be set beside, and more
				list := strings.Trim(other.beside+", "+more, ", ")
				if !nested {
					return more
				}
				return fmt.Sprintf("%s: {%s}", section, list)
			}
			quoted := strings.ReplaceAll(key, ".", ": {") + fmt.Sprintf(": %q", value) + strings.Repeat("}", strings.Count(key, "."))
			if !nested {
				quoted = fmt.Sprintf("%s: %q", o.key, value)
			}
			want := value
			if _, secret := o.ptr(Default()).(*Secret); secret {
				want = hidden
			}
			check := func(c *Config, origins Origins, err error, origin string) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if got := format(o.ptr(c)); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				if p, ok := o.ptr(c).(*Secret); ok && p.Reveal() != value {
					t.Errorf("got secret %q, want %q", p.Reveal(), value)
				}
				if origins[o.key] != origin {
					t.Errorf("origin: got %q, want %q", origins[o.key], origin)
				}
			}
			c, origins, err := load(t, beside(quoted))
			check(c, origins, err, "line 1 of queued.yaml")
			c, origins, err = load(t, beside(""), Variable(o.key)+"="+value)
			check(c, origins, err, "$"+Variable(o.key))
			if other.beside == "" { // without any file
				c, origins, err = Load(Sources{Dir: "/", Environ: []string{"HOME=/h", Variable(o.key) + "=" + value}})
				check(c, origins, err, "$"+Variable(o.key))
			}
		})
	}
}

func TestLoad_StrongerSourceGoesFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("log: {level: warn, format: json}\nworker: {lease: 1m}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, origins, err := Load(Sources{
		File: "c.yaml", Dir: dir,
		Environ: []string{"HOME=/h", "QUEUED_LOG_LEVEL=error", "QUEUED_LOG_FORMAT=", "QUEUED_WORKER_LEASE=2m"},
		Flags:   map[string]string{"worker.lease": "3m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Log.Level != "error" || c.Log.Format != "json" || c.Worker.Lease != 3*time.Minute {
		t.Errorf("got level %s, format %s, lease %s, want error from the variable, json since an empty variable is none, 3m from the flag", c.Log.Level, c.Log.Format, c.Worker.Lease)
	}
	want := Origins{"log.level": "$QUEUED_LOG_LEVEL", "log.format": "line 1 of c.yaml", "worker.lease": "--lease"}
	if diff := cmp.Diff(want, origins); diff != "" {
		t.Errorf("origins (-want +got):\n%s", diff)
	}
}

func TestLoad_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	kind := "kinds:\n  - {name: a, handler: log}\n  - "
	tests := []struct{ name, text, want string }{
		{"unknown key", "worker: {leese: 1m}", "worker.leese: is no option; did you mean worker.lease? (from line 1 of queued.yaml)"},
		{"unknown section", "wroker: {lease: 1m}", "wroker: is no option; did you mean worker? (from line 1 of queued.yaml)"},
		{"right key, wrong place", "lease: 1m", "lease: is no option; did you mean worker.lease? (from line 1 of queued.yaml)"},
		{"nothing like it", "\n\nzzzzzzzz: 1", "zzzzzzzz: is no option (from line 3 of queued.yaml)"},
		{"unknown key without value", "worker:\n  leese:\n", "worker.leese: is no option; did you mean worker.lease? (from line 2 of queued.yaml)"},
		{"key in capitals", "Worker: {lease: 1m}", "Worker: is no option; did you mean worker? (from line 1 of queued.yaml)"},
		{"key with dots", "worker.lease: 1m", "worker.lease: must stand in its section, not with dots in the key (from line 1 of queued.yaml)"},
		{"unknown key of a kind", kind + "{name: b, handler: log, timout: 3s}", "kinds[1].timout: is no option; did you mean kinds[].timeout? (from line 3 of queued.yaml)"},
		{"section that is a value", "worker: 5", "worker: must be a section with keys of its own (from line 1 of queued.yaml)"},
		{"list that is a section", "kinds: {name: a}", "kinds: must be a list of entries that begin with \"- name:\" (from line 1 of queued.yaml)"},
		{"list of texts", "queues: [default]", "queues[0]: must be an entry with keys of its own, such as \"- name: mail\" (from line 1 of queued.yaml)"},
		{"not a mapping", "- a", "queued.yaml: must be sections and keys, such as \"log: {level: info}\""},
		{"two documents", "log: {level: info}\n---\nlog: {level: warn}\n", "queued.yaml: is not valid YAML: must have one document only"},
		{"key twice", "log: {level: info}\nlog: {level: warn}\n", "queued.yaml: is not valid YAML: unmarshal errors:   line 2: mapping key \"log\" already defined at line 1"},

		{"duration without unit", "worker: {lease: 30}", "worker.lease: needs a unit, for instance 30s (got 30, from line 1 of queued.yaml)"},
		{"duration without unit in quotes", `worker: {lease: "30"}`, `worker.lease: needs a unit, for instance 30s (got "30", from line 1 of queued.yaml)`},
		{"duration below 1 without unit", "worker: {lease: 0.5}", "worker.lease: needs a unit, for instance 0.5s (got 0.5, from line 1 of queued.yaml)"},
		{"duration empty", `worker: {lease: ""}`, `worker.lease: must be a time with its unit, for instance 500ms, 30s, 10m, 12h or 30d (got "", from line 1 of queued.yaml)`},
		{"duration negative", "worker: {lease: -5s}", `worker.lease: must be between 300ms and 1h (got "-5s", from line 1 of queued.yaml)`},
		{"duration of nothing", "worker: {poll_interval: 0}", "worker.poll_interval: must be between 1ms and 1h (got 0, from line 1 of queued.yaml)"},
		{"duration too long", "retention: {done: 200000d}", `retention.done: must not be longer than 36500d (got "200000d", from line 1 of queued.yaml)`},
		{"size without unit", "payload_limit: 1048576", "payload_limit: needs a unit, for instance 1048576B or 1MiB (got 1048576, from line 1 of queued.yaml)"},
		{"size with a strange unit", "payload_limit: 1Mb", `payload_limit: must have one of the units B, KiB, MiB, GiB, kB, MB and GB (got "1Mb", from line 1 of queued.yaml)`},
		{"size too large", "payload_limit: 99999999999GiB", `payload_limit: is too large (got "99999999999GiB", from line 1 of queued.yaml)`},
		{"number negative", "worker: {max_jobs: -1}", "worker.max_jobs: must be between 0 and 1000000000 (got -1, from line 1 of queued.yaml)"},
		{"number with a fraction", "worker: {max_jobs: 1.5}", "worker.max_jobs: must be a whole number (got 1.5, from line 1 of queued.yaml)"},
		{"number that is a yes", "worker: {max_jobs: true}", "worker.max_jobs: must be a whole number (got true, from line 1 of queued.yaml)"},
		{"share above 1", "defaults: {backoff: {jitter: 1.1}}", "defaults.backoff.jitter: must be between 0 and 1 (got 1.1, from line 1 of queued.yaml)"},
		{"share that is no number", "defaults: {backoff: {jitter: .nan}}", "defaults.backoff.jitter: must be a number (got NaN, from line 1 of queued.yaml)"},
		{"one of", "log: {level: warning}", `log.level: must be one of debug, info, warn, error; did you mean warn? (got "warning", from line 1 of queued.yaml)`},
		{"text that is a number", "queues: [{name: 123}]", "queues[0].name: must be text; put it in quotes (got 123, from line 1 of queued.yaml)"},
		{"scalar that is a list", "log: {level: [info]}", "log.level: must be text; put it in quotes (got a list, from line 1 of queued.yaml)"},

		{"lease of two heartbeats", "worker: {lease: 20s, heartbeat: 10s}", "worker.lease: must be at least 3 heartbeats, which is 30s (got 20s, from line 1 of queued.yaml)"},
		{"heartbeat too long for the lease", "worker: {heartbeat: 11s}", "worker.lease: must be at least 3 heartbeats, which is 33s (got 30s)"},
		{"backoff above its cap", "defaults: {backoff: {base: 2h}}", "defaults.backoff.base: must not be longer than the cap, which is 1h (got 2h, from line 1 of queued.yaml)"},
		{"all addresses", `http: {listen: ":9464"}`, `http.listen: must be an address of this machine's loopback, 127.0.0.1 or [::1]: there is no authentication yet (got ":9464", from line 1 of queued.yaml)`},
		{"address of the network", "http: {listen: 192.0.2.1:9464}", `http.listen: must be an address of this machine's loopback, 127.0.0.1 or [::1]: there is no authentication yet (got "192.0.2.1:9464", from line 1 of queued.yaml)`},
		{"name to listen on", "http: {listen: example.org:80}", `http.listen: must be an address of this machine's loopback, 127.0.0.1 or [::1]: there is no authentication yet (got "example.org:80", from line 1 of queued.yaml)`},
		{"no port", "http: {listen: 127.0.0.1}", `http.listen: must be an address and a port, such as 127.0.0.1:9464, or off (got "127.0.0.1", from line 1 of queued.yaml)`},
		{"port too high", `http: {listen: "127.0.0.1:65536"}`, `http.listen: must have a port between 0 and 65535 (got "127.0.0.1:65536", from line 1 of queued.yaml)`},

		{"no queues", "queues: []", "queues: must have at least one entry (from line 1 of queued.yaml)"},
		{"queue without name", "queues: [{workers: 3}]", "queues[0].name: must not be empty"},
		{"queue twice", "queues: [{name: a}, {name: a}]", `queues[1].name: must be there once (got "a", from line 1 of queued.yaml)`},
		{"queue without workers", "queues: [{name: a, workers: 0}]", "queues[0].workers: must be between 1 and 10000 (got 0, from line 1 of queued.yaml)"},
		{"queue with a long name", "queues: [{name: " + strings.Repeat("q", 65) + "}]", "queues[0].name: must be at most 64 bytes (from line 1 of queued.yaml)"},
		{"queue ends in a space", `queues: [{name: "a "}]`, "queues[0].name: must not end in a space (from line 1 of queued.yaml)"},
		{"kind twice", kind + "{name: a, handler: log}", `kinds[1].name: must be there once (got "a", from line 3 of queued.yaml)`},
		{"kind without handler", kind + "{name: b}", "kinds[1].handler: must be set: log or exec"},
		{"kind with another handler", kind + "{name: b, handler: exce, command: [x]}", `kinds[1].handler: must be one of log, exec, go; did you mean exec? (got "exce", from line 3 of queued.yaml)`},
		{"exec without command", kind + "{name: b, handler: exec}", "kinds[1].command: must be set: the program and its arguments, as a list"},
		{"command that is a text", kind + "{name: b, handler: exec, command: ls -l}", `kinds[1].command: must be a list (got "ls -l", from line 3 of queued.yaml)`},
		{"command with a number", kind + "{name: b, handler: exec, command: [ls, 1]}", "kinds[1].command: entry 2 must be text; put it in quotes (got a list, from line 3 of queued.yaml)"},
		{"exec's key for log", kind + "{name: b, handler: log, command: [ls]}", "kinds[1].command: is for handler: exec only (from line 3 of queued.yaml)"},
		{"exit code too high", kind + "{name: b, handler: exec, command: [ls], done_codes: [0, 256]}", "kinds[1].done_codes: entry 2 must be between 0 and 255 (got a list, from line 3 of queued.yaml)"},
		{"schedule with a negative wait", kind + "{name: b, handler: log, backoff: {schedule: [1m, -1s]}}", "kinds[1].backoff.schedule: entry 2 must be between 0 and 30d (got a list, from line 3 of queued.yaml)"},
		{"schedule of nothing", kind + "{name: b, handler: log, backoff: {schedule: []}}", "kinds[1].backoff.schedule: must have at least one entry (from line 3 of queued.yaml)"},
		{"kind's backoff above the default cap", kind + "{name: b, handler: log, backoff: {base: 2h}}", "kinds[1].backoff.base: must not be longer than the cap, which is 1h (got 2h, from line 3 of queued.yaml)"},

		{"two databases", "database: {dsn: u@tcp(h)/s, path: q.db}", "database.path: must not be given together with database.dsn: there is one database (from line 1 of queued.yaml)"},
		{"DSN and host", "database: {dsn: u@tcp(h)/s, host: h}", "database.host: must not be given together with database.dsn: there is one database (from line 1 of queued.yaml)"},
		{"DSN and user", "database: {dsn: u@tcp(h)/s, user: u}", "database.user: needs database.host or database.socket beside it (from line 1 of queued.yaml)"},
		{"host without schema", "database: {host: h}", "database.name: must be set: it is the schema with the tables"},
		{"password without host", "database: {password: x}", "database.password: needs database.host or database.socket beside it (from line 1 of queued.yaml)"},
		{"claim for the embedded database", "database: {claim: cas}", "database.claim: needs a database server: set database.dsn, database.host or database.socket (from line 1 of queued.yaml)"},
		{"prefix with a dash", "database: {host: h, name: q, table_prefix: q-}", `database.table_prefix: must be at most 32 of A-Z a-z 0-9 and _ (got "q-", from line 1 of queued.yaml)`},
		{"certificate without key", "database: {host: h, name: q, tls_cert: c.pem}", "database.tls_cert: must be given together with database.tls_key (from line 1 of queued.yaml)"},
		{"password twice", "database: {host: h, name: q, password: x, password_file: y}", `database.password_file: must not be given together with database.password (got "y", from line 1 of queued.yaml)`},
		{"password file missing", "database: {host: h, name: q, password_file: y}", `database.password_file: no such file or directory (got "y", from line 1 of queued.yaml)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := load(t, tt.text)
			if err == nil {
				t.Fatalf("got no error, want %s", tt.want)
			}
			if diff := cmp.Diff([]string{tt.want}, violations(t, err)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoad_AcceptsWhatIsRight(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty file":             "",
		"comments only":          "# nothing\n",
		"sections without value": "worker:\nlog:\nkinds:\n",
		"keys without value":     "worker:\n  lease:\nlog: {level: null}\n",
		"lease of 3 heartbeats":  "worker: {lease: 3s, heartbeat: 1s}",
		"nothing is served":      "http: {listen: off}",
		"localhost":              "http: {listen: localhost:0}",
		"a go kind":              "kinds: [{name: a, handler: go, timeout: 3s}]",
		"kinds of one letter":    "kinds: [{name: A, handler: log}, {name: a, handler: log}]",
		"anchors":                "kinds:\n  - &a {name: a, handler: log, timeout: 3s}\n  - {<<: *a, name: b}\n",
		"kept for ever":          "retention: {done: 0, dead: 0}",
		"schedule beside base":   "kinds: [{name: a, handler: log, backoff: {schedule: [2m, 2h]}}]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustLoad(t, text)
		})
	}
}

func TestLoad_ReportsAllAtOnce(t *testing.T) {
	t.Parallel()
	_, _, err := load(t, "worker:\n  lease: 5\n  max_jobs: -1\nlog: {level: loud}\nkinds: [{name: '', handler: log}]\n")
	want := []string{
		"worker.lease: needs a unit, for instance 5s (got 5, from line 2 of queued.yaml)",
		"worker.max_jobs: must be between 0 and 1000000000 (got -1, from line 3 of queued.yaml)",
		`log.level: must be one of debug, info, warn, error (got "loud", from line 4 of queued.yaml)`,
		"kinds[0].name: must not be empty (from line 5 of queued.yaml)",
	}
	if diff := cmp.Diff(want, violations(t, err)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := strings.Count(err.Error(), "\n"), len(want); got != want {
		t.Errorf("the message has %d lines behind the first, want %d:\n%s", got, want, err)
	}
}

func TestLoad_UnknownVariableIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ variable, want string }{
		{"QUEUED_WORKER_LEESE=1m", "$QUEUED_WORKER_LEESE: is no option; did you mean QUEUED_WORKER_LEASE?"},
		{"QUEUED_DATABSE_DSN=x", "$QUEUED_DATABSE_DSN: is no option; did you mean QUEUED_DATABASE_DSN?"},
		{"QUEUED_KINDS=mail", "$QUEUED_KINDS: can only be set in the file"},
		{"QUEUED_DATABASE_SOMETHING_ELSE=1", "$QUEUED_DATABASE_SOMETHING_ELSE: is no option"},
		{"QUEUED_WORKER_LEASE=5", `worker.lease: needs a unit, for instance 5s (got "5", from $QUEUED_WORKER_LEASE)`},
		// What others set, an exec handler for its command among them.
		{"QUEUED_SOMETHING_ELSE=1", ""},
		{"QUEUED_SERVERS_HOME=/x", ""},
		{"QUEUED_PORT=tcp://10.0.0.1:9464", ""},
		{"QUEUED_JOB_ID=4", ""},
		{"QUEUED_QUEUE=mail", ""},
		{"QUEUED_PORT_9464_TCP=tcp://10.0.0.1:9464", ""},
		{"QUEUED_SERVICE_HOST=10.0.0.1", ""},
		{"QUEUED_CONFIG=/x", ""},
		{"QUEUED_TYPO=", ""},
		{"queued_worker_lease=5", ""},
	}
	for _, tt := range tests {
		t.Run(tt.variable, func(t *testing.T) {
			t.Parallel()
			_, _, err := load(t, "", tt.variable)
			if tt.want == "" {
				if err != nil {
					t.Errorf("got error %v, want none", err)
				}
				return
			}
			if err == nil {
				t.Fatal("got no error")
			}
			if diff := cmp.Diff([]string{tt.want}, violations(t, err)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoad_SecretsComeFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"c.yaml": "database: {host: h, name: q, password_file: pw}", "dsn.yaml": "database: {dsn_file: queued.dsn}",
		"both.yaml": "database: {path: q.db}", "empty.yaml": "database: {dsn_file: empty}", "lines.yaml": "database: {dsn_file: lines}",
		"pw": "geheim\r\n", "queued.dsn": "u:geheim@tcp(h)/s\n", "empty": "\n", "lines": "a\nb\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	credentials := []string{"HOME=/h", "CREDENTIALS_DIRECTORY=" + dir}
	tests := []struct {
		name          string
		from          Sources
		dsn, password string
		want          string // violation
	}{
		{name: "password_file", from: Sources{File: "c.yaml"}, password: "geheim"},
		{name: "dsn_file", from: Sources{File: "dsn.yaml"}, dsn: "u:geheim@tcp(h)/s"},
		{name: "credential", from: Sources{Environ: credentials}, dsn: "u:geheim@tcp(h)/s"},
		{name: "credential is not used beside a server", from: Sources{File: "c.yaml", Environ: credentials}, password: "geheim"},
		{name: "credential is not used beside a path", from: Sources{File: "both.yaml", Environ: credentials}},
		{name: "no credential", from: Sources{Environ: []string{"HOME=/h", "CREDENTIALS_DIRECTORY=/nowhere"}}},
		{name: "empty file", from: Sources{File: "empty.yaml"}, want: `database.dsn_file: must not be an empty file (got "empty", from line 1 of empty.yaml)`},
		{name: "two lines", from: Sources{File: "lines.yaml"}, want: `database.dsn_file: must be a file with one line of text (got "lines", from line 1 of lines.yaml)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			from := tt.from
			from.Dir = dir
			if from.Environ == nil {
				from.Environ = []string{"HOME=/h"}
			}
			c, origins, err := Load(from)
			if tt.want != "" {
				if diff := cmp.Diff([]string{tt.want}, violations(t, err)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Database.DSN.Reveal(); got != tt.dsn {
				t.Errorf("DSN: got %q, want %q", got, tt.dsn)
			}
			if got := c.Database.Password.Reveal(); got != tt.password {
				t.Errorf("password: got %q, want %q", got, tt.password)
			}
			if text := fmt.Sprintf("%v %+v %#v", Settings(c, origins), c, *c); strings.Contains(text, "geheim") {
				t.Errorf("the secret is shown in %s", text)
			}
		})
	}
}

// Whatever else is wrong, a secret is no part of the message.
func TestLoad_ErrorsShowNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"database: {dsn: 'u:geheim@tcp(h)/s', host: h}",
		"database: {password: geheim}",
		"database: {password: [geheim]}",
		"database: {password: {geheim: geheim}}",
		"database: {dsn: geheim, dsn_file: x}",
		"kinds: [{name: a, handler: exec, command: [ls], env: ['A=geheim', 5]}]",
	} {
		_, _, err := load(t, text)
		if err == nil {
			t.Errorf("%s: got no error", text)
		} else if strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: the secret is shown: %s", text, err)
		}
	}
}

func TestLoad_RelativePathsStartWhereTheyAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "database: {path: ../var/q.db}\nkinds:\n  - {name: a, handler: exec, command: [./a.sh, ./b], dir: work}\n  - {name: b, handler: exec, command: [ls, ./b]}\n"
	if err := os.WriteFile(filepath.Join(dir, "etc", "c.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Load(Sources{File: "etc/c.yaml", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Database.Path, c.Kinds[0].Exec.Command[0], c.Kinds[0].Exec.Command[1], c.Kinds[0].Exec.Dir, c.Kinds[1].Exec.Command[0]}
	want := []string{dir + "/var/q.db", dir + "/etc/a.sh", "./b", dir + "/etc/work", "ls"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths in the file (-want +got):\n%s", diff)
	}
	for name, from := range map[string]Sources{
		"flag":     {File: "etc/c.yaml", Dir: dir, Flags: map[string]string{"database.path": "q.db"}},
		"variable": {File: "etc/c.yaml", Dir: dir, Environ: []string{"QUEUED_DATABASE_PATH=q.db"}},
	} {
		c, _, err := Load(from)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.Database.Path, dir+"/q.db"; got != want {
			t.Errorf("path in the %s: got %s, want %s", name, got, want)
		}
	}
}

func TestLoad_EmbeddedDatabaseHasAPlace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		environ []string
		want    string
	}{
		{[]string{"HOME=/h", "XDG_STATE_HOME=/x", "STATE_DIRECTORY=/var/lib/queued:/var/lib/other"}, "/var/lib/queued/queued.db"},
		{[]string{"HOME=/h", "XDG_STATE_HOME=/x"}, "/x/queued/queued.db"},
		{[]string{"HOME=/h", "XDG_STATE_HOME=relative"}, "/h/.local/state/queued/queued.db"},
	}
	for _, tt := range tests {
		c, _, err := Load(Sources{Environ: tt.environ, Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if c.Database.Path != tt.want {
			t.Errorf("%v: got %s, want %s", tt.environ, c.Database.Path, tt.want)
		}
	}
	_, _, err := Load(Sources{Dir: "/"})
	want := []string{"database.path: must be set, since there is neither $STATE_DIRECTORY nor $HOME"}
	if diff := cmp.Diff(want, violations(t, err)); diff != "" {
		t.Errorf("without a home (-want +got):\n%s", diff)
	}
}

func TestParseDuration_ReadsWhatFormatDurationWrites(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text   string
		want   time.Duration
		writes string // "" is text
	}{
		{"0", 0, ""},
		{"0s", 0, "0"},
		{"1ms", time.Millisecond, ""},
		{"1.5s", 1500 * time.Millisecond, ""},
		{"90s", 90 * time.Second, "1m30s"},
		{"10m", 10 * time.Minute, ""},
		{"1h30m", 90 * time.Minute, ""},
		{"24h", 24 * time.Hour, ""},
		{"1d", 24 * time.Hour, "24h"},
		{"2d", 48 * time.Hour, ""},
		{"1.5d", 36 * time.Hour, "36h"},
		{"1d12h", 36 * time.Hour, "36h"},
		{"30d", 30 * 24 * time.Hour, ""},
		{"-5s", -5 * time.Second, ""},
	}
	for _, tt := range tests {
		got, err := ParseDuration(tt.text)
		if err != nil || got != tt.want {
			t.Errorf("ParseDuration(%q): got %v, %v, want %v", tt.text, got, err, tt.want)
			continue
		}
		want := tt.writes
		if want == "" {
			want = tt.text
		}
		if text := FormatDuration(got); text != want {
			t.Errorf("FormatDuration(%v): got %s, want %s", got, text, want)
		}
	}
	for _, text := range []string{"", "5", "-5", "0.5", "d", "1", "1w", "h", "1d5", "1d-2h", "1h1d", "1e3s", "99999999999d", "106752d", "30 s", "--5s", "5m+3s"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q): got %v, want an error", text, d)
		}
	}
}

// Whatever the file holds, loading ends with a configuration that keeps the rules or
// with an *Error, and the configuration survives being written down.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("worker: {lease: 30}"))
	f.Add([]byte("kinds:\n  - &a {name: a, handler: log}\n  - {<<: *a, name: b}\n"))
	f.Add([]byte("queues: [{name: x, workers: 2}]\nkinds: [{name: a, handler: exec, command: [ls], backoff: {schedule: [1m]}}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("database: {dsn_file: /dev/zero}"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &loader{from: Sources{File: "f.yaml", Dir: dir}, origins: Origins{}}
		c, _, err := l.load(data)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || len(e.Violations) == 0 || e.Error() == "" {
				t.Fatalf("got error %#v, want an *Error that says something", err)
			}
			return
		}
		if c.Worker.Lease < 3*c.Worker.Heartbeat || len(c.Queues) == 0 || c.Defaults.MaxAttempts < 1 || c.PayloadLimit < 1 {
			t.Errorf("a configuration that breaks its rules: %+v", c)
		}
		for _, o := range options {
			var again Config
			if text := format(o.ptr(c)); text != "" && text != hidden {
				if rule := setValue(o.ptr(&again), text); rule != "" {
					t.Errorf("%s: %s is written and can't be read: %s", o.key, text, rule)
				}
			}
		}
	})
}
