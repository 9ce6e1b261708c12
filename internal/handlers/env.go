package handlers

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"queued/job"
)

// Variables that every command gets from the daemon's own environment.
var basicEnv = []string{"HOME", "LANG", "PATH", "TZ"}

// The path of a command when the daemon has none.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// Variables that are the daemon's own. A child that had them could report to
// systemd in the daemon's name, take its sockets, or read its passwords.
var (
	ownVars = []string{
		"CREDENTIALS_DIRECTORY", "ENCRYPTED_CREDENTIALS_DIRECTORY", "FDSTORE", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES",
		"LISTEN_FDS", "LISTEN_PID", "MAINPID", "MANAGERPID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "MONITOR_SERVICE_RESULT",
		"NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC",
	}
	ownPrefixes = []string{"QUEUED_", "LISTEN_", "WATCHDOG_", "MEMORY_PRESSURE_"}
)

func badVar(name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return errors.New("is no name of a variable")
	case slices.Contains(ownVars, name) || slices.ContainsFunc(ownPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }):
		return errors.New("belongs to the daemon")
	}
	return nil
}

func checkEnv(set, pass []string) error {
	var errs []error
	for i, v := range set {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			errs = append(errs, fmt.Errorf("env: entry %d must be NAME=value", i+1))
		} else if err := badVar(name); err != nil {
			errs = append(errs, fmt.Errorf("env: %q %w", name, err))
		} else if strings.ContainsRune(value, 0) {
			errs = append(errs, fmt.Errorf("env: %q has a NUL", name))
		}
	}
	for _, name := range pass {
		if err := badVar(name); err != nil {
			errs = append(errs, fmt.Errorf("pass_env: %q %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// environment is what the command of every run gets; of a variable that is there
// twice, the later holds.
func environment(set, pass []string) []string {
	env := []string{"PATH=" + defaultPath}
	for _, name := range slices.Concat(basicEnv, pass) {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, set...)
}

// runVar is the variable that marks all processes of one run.
const runVar = "QUEUED_RUN_ID"

// jobEnvironment is what the command of one run gets beyond that.
func jobEnvironment(j *job.Job, runID string, deadline time.Time) []string {
	env := []string{
		"QUEUED_JOB_ID=" + strconv.FormatInt(j.ID, 10),
		"QUEUED_JOB_KEY=" + j.JobKey(),
		"QUEUED_QUEUE=" + j.Queue,
		"QUEUED_KIND=" + j.Kind,
		"QUEUED_ATTEMPT=" + strconv.Itoa(j.Attempt),
		"QUEUED_MAX_ATTEMPTS=" + strconv.Itoa(j.MaxAttempts),
		runVar + "=" + runID,
	}
	if !deadline.IsZero() {
		env = append(env, "QUEUED_DEADLINE="+deadline.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	return env
}
