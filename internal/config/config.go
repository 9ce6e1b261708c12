// Package config reads the configuration of queued: the file, the environment,
// flags and credentials become one typed Config, or an Error that names everything
// that is wrong with them. One table, in options.go, holds every option with its
// default, range and text; the reference and the annotated sample are made from it.
//
// viper ends here: nothing else imports it.
package config

//go:generate sh -c "go run queued/cmd/queued config docs > ../../docs/configuration.md"
//go:generate sh -c "go run queued/cmd/queued config docs --sample > ../../configs/queued.yaml"

import (
	"fmt"
	"strings"
	"time"

	"queued/job"
)

// Config is a complete and valid configuration.
type Config struct {
	Database     Database
	Queues       []Queue // at least one, each name once
	Kinds        []Kind  // each name once
	Defaults     job.Policy
	PayloadLimit Size
	Worker       Worker
	Reaper       Reaper
	Retention    Retention
	HTTP         HTTP
	Log          Log
}

// Database says where the jobs are: on a server when Server says so, else in the
// file Path.
type Database struct {
	DSN          Secret
	DSNFile      string
	Host         string
	Port         int
	Socket       string
	User         string
	Password     Secret
	PasswordFile string
	Name         string
	TLS          TLS

	Path string // absolute

	TablePrefix    string
	Claim          string
	MaxConnections int
	Timeout        time.Duration
}

// Server says whether a database server is configured, and not the embedded store.
func (d *Database) Server() bool { return d.DSN != "" || d.Host != "" || d.Socket != "" }

// TLS is how the connection to the server is protected.
type TLS struct {
	Mode, CA, Cert, Key string
}

// Queue is a queue that the daemon works on.
type Queue struct {
	Name    string
	Workers int
}

// Handlers that a kind can have.
const (
	HandlerLog  = "log"
	HandlerExec = "exec"
	HandlerGo   = "go" // brought along by a Go program, see package queued
)

// Kind is a kind of job and what runs it.
type Kind struct {
	Name    string
	Handler string
	Policy  job.Policy
	Exec    Exec // when Handler is exec
}

// Exec is what an exec handler runs.
type Exec struct {
	Command        []string
	Dir            string
	Env            []string // NAME=value
	PassEnv        []string
	DoneCodes      []int // nil: 0
	PermanentCodes []int // nil: 65
	KillGrace      time.Duration
	LogOutput      string
}

// Worker is how jobs are run.
type Worker struct {
	PollInterval     time.Duration
	Lease            time.Duration
	Heartbeat        time.Duration
	ShutdownTimeout  time.Duration
	CancelGrace      time.Duration
	UnknownKindGrace time.Duration
	MaxJobs          int
	MaxJobsSpread    float64
}

// Reaper is how jobs of dead workers are brought back.
type Reaper struct {
	Interval time.Duration // 0: a third of the lease
	Grace    time.Duration
}

// Retention is how long ended jobs are kept; 0 is for ever.
type Retention struct {
	Done time.Duration
	Dead time.Duration
}

// HTTP is where metrics and health are served.
type HTTP struct {
	Listen string // host:port on loopback, or "off"
}

// Off says that nothing is served.
func (h *HTTP) Off() bool { return h.Listen == "off" }

// Log is how the daemon logs.
type Log struct {
	Format string // auto, console or json
	Level  string // debug, info, warn or error
}

// Secret is a text that no formatting shows.
type Secret string

// Reveal is the text itself.
func (s Secret) Reveal() string { return string(s) }

const hidden = "(hidden)"

// String hides the text.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the text from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the text from JSON and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Size is a number of bytes.
type Size int64

// String writes the size with the largest unit that divides it.
func (s Size) String() string { return formatSize(int64(s)) }

// Violation is one thing that is wrong.
type Violation struct {
	Field  string // as in the reference, "kinds[2].timeout", or the name of a variable or file
	Value  string // as given; never a secret
	Rule   string // what must hold
	Origin string // where the value is from; "" for the default
}

func (v Violation) String() string {
	s := v.Field + ": " + v.Rule
	var notes []string
	if v.Value != "" {
		notes = append(notes, "got "+v.Value)
	}
	if v.Origin != "" {
		notes = append(notes, "from "+v.Origin)
	}
	if len(notes) > 0 {
		s += " (" + strings.Join(notes, ", ") + ")"
	}
	return s
}

// Error is everything that is wrong with a configuration.
type Error struct {
	Violations []Violation // at least one
}

func (e *Error) Error() string {
	if len(e.Violations) == 1 {
		return "configuration: " + e.Violations[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration: %d values are not valid", len(e.Violations))
	for _, v := range e.Violations {
		b.WriteString("\n  " + v.String())
	}
	return b.String()
}
