package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"queued/job"
)

// option is one key of the file: a scalar of the whole configuration (T is
// Config), or a key of an entry in the lists queues and kinds.
type option[T any] struct {
	key    string       // with dots between the sections
	ptr    func(*T) any // where its value goes; the pointer's type is the option's
	def    string       // default as the file has it; "" is none
	lo, hi string       // range, of each entry for a list; "" is none
	values []string     // the only ones possible
	path   bool         // a file or directory; a relative one in the file is relative to the file's directory
	flag   string       // of `queued run`; "" has none
	none   string       // what having no value means, for the reference
	text   string       // for the reference, and the first sentence for the flag
}

// section introduces the options whose key starts with its name.
type section struct{ name, text string }

var sections = []section{
	{"", "Keys that stand by themselves."},
	{"database", "Where the jobs are kept. With none of `dsn`, `host` and `socket` that is an embedded database in one file, which needs no server."},
	{"queues", "A list of the queues that this daemon works on, by default one queue `default` with 16 workers. It is a list because the names of queues are compared byte by byte."},
	{"kinds", "A list of the kinds of job that this daemon can run, and what runs them. A daemon needs at least one. Jobs of other kinds are left to other daemons; see `worker.unknown_kind_grace`."},
	{"defaults", "What holds for kinds that say nothing else. What a job itself asks for goes before both."},
	{"worker", "How jobs are claimed and run."},
	{"reaper", "How jobs come back whose daemon died or lost its lease."},
	{"retention", "How long jobs that have ended are kept. Ready and running jobs are never removed."},
	{"http", "Metrics and health."},
	{"log", "The daemon's log, on standard error."},
}

func ptrTo[T any, V any](f func(*T) *V) func(*T) any {
	return func(t *T) any { return f(t) }
}

// options are the scalars of the file.
var options = []option[Config]{
	{
		key: "payload_limit", ptr: ptrTo(func(c *Config) *Size { return &c.PayloadLimit }), def: "1MiB", lo: "1KiB", hi: "64MiB",
		text: "Largest payload of a job. The command line refuses larger ones; one that was inserted all the same becomes a dead letter.",
	},
	{
		key: "database.dsn", ptr: ptrTo(func(c *Config) *Secret { return &c.Database.DSN }),
		text: "Server and schema in one line, `user:password@tcp(host:3306)/schema` or `user:password@unix(/path/to.sock)/schema`. Since the password is in it, better `dsn_file`, or the credential `queued.dsn` of systemd (`LoadCredential=queued.dsn`), which is used when no other server is configured.",
	},
	{
		key: "database.dsn_file", ptr: ptrTo(func(c *Config) *string { return &c.Database.DSNFile }), path: true,
		text: "A file that holds the DSN.",
	},
	{
		key: "database.host", ptr: ptrTo(func(c *Config) *string { return &c.Database.Host }),
		text: "Host name or address of the server, instead of a DSN.",
	},
	{
		key: "database.port", ptr: ptrTo(func(c *Config) *int { return &c.Database.Port }), def: "3306", lo: "1", hi: "65535",
		text: "Port of the server.",
	},
	{
		key: "database.socket", ptr: ptrTo(func(c *Config) *string { return &c.Database.Socket }), path: true,
		text: "Unix socket of the server, instead of `host`.",
	},
	{
		key: "database.user", ptr: ptrTo(func(c *Config) *string { return &c.Database.User }),
		text: "User to log in as, with `host` or `socket`. The daemon needs SELECT, INSERT, UPDATE and DELETE, `queued migrate` CREATE, ALTER, INDEX and DROP as well.",
	},
	{
		key: "database.password", ptr: ptrTo(func(c *Config) *Secret { return &c.Database.Password }),
		text: "Password of the user. Better `password_file`.",
	},
	{
		key: "database.password_file", ptr: ptrTo(func(c *Config) *string { return &c.Database.PasswordFile }), path: true,
		text: "A file that holds the password.",
	},
	{
		key: "database.name", ptr: ptrTo(func(c *Config) *string { return &c.Database.Name }),
		text: "Schema with the tables, with `host` or `socket`. One of its own on the application's server is best: a transaction there may span schemas.",
	},
	{
		key: "database.tls", ptr: ptrTo(func(c *Config) *string { return &c.Database.TLS.Mode }), def: "off",
		values: []string{"off", "preferred", "required", "verify-ca", "verify-identity"},
		text:   "Encryption of the connection. `preferred`: if the server can, nothing is checked. `required`: always, the certificate is not checked. `verify-ca`: it must be signed by `tls_ca`. `verify-identity`: it must bear the host's name, too.",
	},
	{
		key: "database.tls_ca", ptr: ptrTo(func(c *Config) *string { return &c.Database.TLS.CA }), path: true, none: "the system's",
		text: "File with the certificates of the authorities to trust.",
	},
	{
		key: "database.tls_cert", ptr: ptrTo(func(c *Config) *string { return &c.Database.TLS.Cert }), path: true,
		text: "File with the certificate of the client, when the server asks for one.",
	},
	{
		key: "database.tls_key", ptr: ptrTo(func(c *Config) *string { return &c.Database.TLS.Key }), path: true,
		text: "File with the key of `tls_cert`.",
	},
	{
		key: "database.path", ptr: ptrTo(func(c *Config) *string { return &c.Database.Path }), path: true, none: "see text",
		text: "File of the embedded database. When it is not set: `queued.db` in `$STATE_DIRECTORY` (which systemd sets), else in `$XDG_STATE_HOME/queued`, else in `~/.local/state/queued`. It must be on a local disk.",
	},
	{
		key: "database.table_prefix", ptr: ptrTo(func(c *Config) *string { return &c.Database.TablePrefix }),
		text: "Put in front of the name of every table, for those who must share a schema: up to 32 of A-Z a-z 0-9 and _. Servers only.",
	},
	{
		key: "database.claim", ptr: ptrTo(func(c *Config) *string { return &c.Database.Claim }), def: "auto",
		values: []string{"auto", "skip_locked", "cas"},
		text:   "How jobs are claimed. `auto` looks at the server and takes what is fastest there; `queued stats` shows the choice. Servers only.",
	},
	{
		key: "database.max_connections", ptr: ptrTo(func(c *Config) *int { return &c.Database.MaxConnections }), def: "8", lo: "2", hi: "1000",
		text: "Most connections to the server of one process. Two more are kept for the leases, so that a full pool can't let them run out. Handlers use none of them. Servers only.",
	},
	{
		key: "database.timeout", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Database.Timeout }), def: "10s", lo: "100ms", hi: "5m",
		text: "Time after which a call to the database is given up and tried again.",
	},
	{
		key: "defaults.max_attempts", ptr: ptrTo(func(c *Config) *int { return &c.Defaults.MaxAttempts }), def: "5", lo: "1", hi: fmt.Sprint(job.MaxMaxAttempts),
		text: "Runs after which a job that fails becomes a dead letter.",
	},
	{
		key: "defaults.timeout", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Defaults.Timeout }), def: "10m", lo: "1ms", hi: FormatDuration(job.MaxTimeout),
		text: "Time that one run may take. Past it the handler is cancelled and the attempt has failed.",
	},
	{
		key: "defaults.backoff.base", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Defaults.Backoff.Base }), def: "10s", lo: "0", hi: "30d",
		text: "Wait after the first failed attempt; twice as long after each further one. 0: tried again at once.",
	},
	{
		key: "defaults.backoff.cap", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Defaults.Backoff.Cap }), def: "1h", lo: "0", hi: "30d",
		text: "Longest wait, at least `base`.",
	},
	{
		key: "defaults.backoff.jitter", ptr: ptrTo(func(c *Config) *float64 { return &c.Defaults.Backoff.Jitter }), def: "0.2", lo: "0", hi: "1",
		text: "Share of the wait that is added at random, so that jobs that failed together don't come back together. 0: nothing is added.",
	},
	{
		key: "worker.poll_interval", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.PollInterval }), def: "45ms", lo: "1ms", hi: "1h", flag: "poll-interval",
		text: "How often an idle daemon looks for jobs. One query asks for all queues.",
	},
	{
		key: "worker.lease", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.Lease }), def: "30s", lo: "300ms", hi: "1h", flag: "lease",
		text: "Time after which the jobs of a daemon that is not heard of any more go to others. It is renewed while the daemon lives, however long a job runs. At least three heartbeats.",
	},
	{
		key: "worker.heartbeat", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.Heartbeat }), def: "10s", lo: "100ms", hi: "20m", flag: "heartbeat",
		text: "How often leases are renewed.",
	},
	{
		key: "worker.shutdown_timeout", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.ShutdownTimeout }), def: "30s", lo: "1ms", hi: "7d", flag: "shutdown-timeout",
		text: "How long running jobs may go on after the daemon was asked to stop. Past it they are cancelled and go back, and the attempt is not counted.",
	},
	{
		key: "worker.cancel_grace", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.CancelGrace }), def: "10s", lo: "1ms", hi: "1h",
		text: "How long a cancelled handler may take to return. One that takes longer is left to itself: its lease is no longer renewed. Exec handlers get at least their `kill_grace` and 3 s.",
	},
	{
		key: "worker.unknown_kind_grace", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Worker.UnknownKindGrace }), def: "1m", lo: "1ms", hi: "30d",
		text: "Age up to which a job of a kind that no daemon knows is put back; an older one becomes a dead letter. Kinds of daemons that stopped within the last 10 minutes count as known.",
	},
	{
		key: "worker.max_jobs", ptr: ptrTo(func(c *Config) *int { return &c.Worker.MaxJobs }), def: "0", lo: "0", hi: "1000000000", flag: "max-jobs",
		text: "Stop by itself after so many jobs were started, with exit code 0. 0: never.",
	},
	{
		key: "worker.max_jobs_spread", ptr: ptrTo(func(c *Config) *float64 { return &c.Worker.MaxJobsSpread }), def: "0", lo: "0", hi: "1",
		text: "Share of `max_jobs` of which a random part is taken off, so that daemons that were started together don't stop together. 0: none.",
	},
	{
		key: "reaper.interval", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Reaper.Interval }), def: "0", lo: "0", hi: "1h",
		text: "How often expired leases are looked for. 0: a third of `worker.lease`.",
	},
	{
		key: "reaper.grace", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Reaper.Grace }), def: "5s", lo: "1ms", hi: "1h",
		text: "How long after the end of its lease a job is taken away from its daemon.",
	},
	{
		key: "retention.done", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Retention.Done }), def: "30d", lo: "0", hi: "3650d",
		text: "How long done and cancelled jobs are kept, counted from their end. While they are, their keys refuse duplicates. 0: for ever.",
	},
	{
		key: "retention.dead", ptr: ptrTo(func(c *Config) *time.Duration { return &c.Retention.Dead }), def: "90d", lo: "0", hi: "3650d",
		text: "How long dead letters and the errors of failed attempts are kept. 0: for ever.",
	},
	{
		key: "http.listen", ptr: ptrTo(func(c *Config) *string { return &c.HTTP.Listen }), def: "127.0.0.1:9464", flag: "http",
		text: "Address of /metrics, /healthz and /readyz, or `off`. It must be one of this machine's loopback addresses, since there is no authentication. Port 0 takes a free port. With `--drain` nothing is served unless `--http` is given.",
	},
	{
		key: "log.format", ptr: ptrTo(func(c *Config) *string { return &c.Log.Format }), def: "auto", values: []string{"auto", "console", "json"}, flag: "log-format",
		text: "Form of the log. `auto`: console on a terminal, JSON otherwise.",
	},
	{
		key: "log.level", ptr: ptrTo(func(c *Config) *string { return &c.Log.Level }), def: "info", values: []string{"debug", "info", "warn", "error"}, flag: "log-level",
		text: "Least level that is logged. Jobs that went well are logged at debug.",
	},
}

// queueOptions are the keys of an entry of queues.
var queueOptions = []option[Queue]{
	{
		key: "name", ptr: ptrTo(func(q *Queue) *string { return &q.Name }), none: "required",
		text: "Name of the queue, each once.",
	},
	{
		key: "workers", ptr: ptrTo(func(q *Queue) *int { return &q.Workers }), def: "16", lo: "1", hi: "10000",
		text: "How many of its jobs run at the same time in this daemon.",
	},
}

// kindOptions are the keys of an entry of kinds.
var kindOptions = []option[Kind]{
	{
		key: "name", ptr: ptrTo(func(k *Kind) *string { return &k.Name }), none: "required",
		text: "Name of the kind, each once.",
	},
	{
		key: "handler", ptr: ptrTo(func(k *Kind) *string { return &k.Handler }), none: "required", values: []string{HandlerLog, HandlerExec, HandlerGo},
		text: "What runs its jobs. `log` writes a line to the log. `exec` runs a command, with the payload on its standard input. `go` is a handler of the Go program that this daemon is part of; such a kind needs an entry only to set something else here.",
	},
	{
		key: "max_attempts", ptr: ptrTo(func(k *Kind) *int { return &k.Policy.MaxAttempts }), lo: "1", hi: fmt.Sprint(job.MaxMaxAttempts), none: "`defaults.max_attempts`",
		text: "Runs after which a job that fails becomes a dead letter.",
	},
	{
		key: "timeout", ptr: ptrTo(func(k *Kind) *time.Duration { return &k.Policy.Timeout }), lo: "1ms", hi: FormatDuration(job.MaxTimeout), none: "`defaults.timeout`",
		text: "Time that one run may take.",
	},
	{
		key: "backoff.base", ptr: ptrTo(func(k *Kind) *time.Duration { return &k.Policy.Backoff.Base }), lo: "0", hi: "30d", none: "`defaults.backoff.base`",
		text: "Wait after the first failed attempt; twice as long after each further one. 0: tried again at once.",
	},
	{
		key: "backoff.cap", ptr: ptrTo(func(k *Kind) *time.Duration { return &k.Policy.Backoff.Cap }), lo: "0", hi: "30d", none: "`defaults.backoff.cap`",
		text: "Longest wait, at least `backoff.base`.",
	},
	{
		key: "backoff.jitter", ptr: ptrTo(func(k *Kind) *float64 { return &k.Policy.Backoff.Jitter }), lo: "0", hi: "1", none: "`defaults.backoff.jitter`",
		text: "Share of the wait that is added at random. 0: nothing is added.",
	},
	{
		key: "backoff.schedule", ptr: ptrTo(func(k *Kind) *[]time.Duration { return &k.Policy.Backoff.Schedule }), lo: "0", hi: "30d",
		text: "The waits one by one, instead of `base` and `cap`; the last one repeats. For instance `[2m, 10m, 30m, 2h]`.",
	},
	{
		key: "command", ptr: ptrTo(func(k *Kind) *[]string { return &k.Exec.Command }), none: "required",
		text: "exec: program and arguments, as a list. No shell is between, and nothing of a job becomes part of it. A program without a slash is looked up in the daemon's PATH.",
	},
	{
		key: "dir", ptr: ptrTo(func(k *Kind) *string { return &k.Exec.Dir }), path: true, none: "the daemon's",
		text: "exec: working directory.",
	},
	{
		key: "env", ptr: ptrTo(func(k *Kind) *[]string { return &k.Exec.Env }),
		text: "exec: variables for the command, as a list of `NAME=value`. Beside them it gets HOME, LANG, PATH and TZ of the daemon, and QUEUED_JOB_ID, QUEUED_JOB_KEY, QUEUED_QUEUE, QUEUED_KIND, QUEUED_ATTEMPT, QUEUED_MAX_ATTEMPTS, QUEUED_DEADLINE and QUEUED_RUN_ID.",
	},
	{
		key: "pass_env", ptr: ptrTo(func(k *Kind) *[]string { return &k.Exec.PassEnv }),
		text: "exec: names of further variables that the command gets from the daemon.",
	},
	{
		key: "done_codes", ptr: ptrTo(func(k *Kind) *[]int { return &k.Exec.DoneCodes }), lo: "0", hi: "255", none: "`[0]`",
		text: "exec: exit codes of a job that is done.",
	},
	{
		key: "permanent_codes", ptr: ptrTo(func(k *Kind) *[]int { return &k.Exec.PermanentCodes }), lo: "0", hi: "255", none: "`[65]`",
		text: "exec: exit codes of a job that no retry can mend, which becomes a dead letter. All codes in neither list are retried.",
	},
	{
		key: "kill_grace", ptr: ptrTo(func(k *Kind) *time.Duration { return &k.Exec.KillGrace }), def: "5s", lo: "1ms", hi: "10m",
		text: "exec: time between TERM and KILL when the command must stop.",
	},
	{
		key: "log_output", ptr: ptrTo(func(k *Kind) *string { return &k.Exec.LogOutput }), def: "info", values: []string{"info", "debug", "off"},
		text: "exec: level at which what the command prints is logged, or `off`.",
	},
}

// keyOf is a key below the name of its list: "kinds[].timeout".
func keyOf(list, key string) string {
	if list == "" {
		return key
	}
	return list + "[]." + key
}

// setDefaults fills t with the defaults of its options.
func setDefaults[T any](table []option[T], t *T) {
	for _, o := range table {
		if o.def != "" {
			if rule := setValue(o.ptr(t), o.def); rule != "" {
				panic("default of option " + o.key + ": " + rule) // a wrong table shows in every test
			}
		}
	}
}

// rangeRule is the rule of the option's range that the value behind ptr breaks, or "".
func (o *option[T]) rangeRule(ptr any) string {
	switch p := ptr.(type) {
	case *string:
		if len(o.values) > 0 && !slices.Contains(o.values, *p) {
			rule := "must be one of " + strings.Join(o.values, ", ")
			if near := nearest(*p, o.values); near != "" {
				rule += "; did you mean " + near + "?"
			}
			return rule
		}
	case *int:
		return outside(o, *p)
	case *float64:
		return outside(o, *p)
	case *time.Duration:
		return outside(o, *p)
	case *Size:
		return outside(o, *p)
	case *[]int:
		return anyOutside(o, *p)
	case *[]time.Duration:
		return anyOutside(o, *p)
	}
	return ""
}

func outside[T any, V int | float64 | time.Duration | Size](o *option[T], v V) string {
	var lo, hi V
	if o.lo == "" {
		return ""
	}
	if setValue(&lo, o.lo) != "" || setValue(&hi, o.hi) != "" {
		panic("range of option " + o.key)
	}
	if v < lo || v > hi {
		return "must be between " + o.lo + " and " + o.hi
	}
	return ""
}

func anyOutside[T any, V int | float64 | time.Duration | Size](o *option[T], list []V) string {
	for i, v := range list {
		if rule := outside(o, v); rule != "" {
			return fmt.Sprintf("entry %d %s", i+1, rule)
		}
	}
	return ""
}

// keys lists the keys of a table, below the name of its list.
func keys[T any](list string, table []option[T]) []string {
	all := make([]string, len(table))
	for i, o := range table {
		all[i] = keyOf(list, o.key)
	}
	return all
}
