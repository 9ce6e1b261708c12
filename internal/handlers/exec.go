package handlers

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Exec configures a handler that runs a command for each job.
//
// The command gets the payload on its standard input and what it needs to know of
// the job in QUEUED_JOB_ID, QUEUED_JOB_KEY, QUEUED_QUEUE, QUEUED_KIND,
// QUEUED_ATTEMPT, QUEUED_MAX_ATTEMPTS, QUEUED_DEADLINE (UTC, when the run will be
// cut off) and QUEUED_RUN_ID (random). The end of its standard output becomes the
// job's result, that of its standard error the error of a failed attempt.
type Exec struct {
	// Command is the program and its arguments. No shell is between. A program
	// without a slash is looked up in the daemon's PATH.
	Command []string
	Dir     string // working directory, absolute; "" is the daemon's
	// Env, NAME=value, is set for the command. PassEnv names variables that it gets
	// from the daemon beside HOME, LANG, PATH and TZ. Neither may name what belongs to
	// the daemon: QUEUED_*, and what systemd gave it.
	Env     []string
	PassEnv []string
	// Exit codes, 0 to 255, for a job that is done (nil: 0) and for one that no retry
	// can mend (nil: 65). All others, and death by a signal, are retried.
	DoneCodes      []int
	PermanentCodes []int
	// KillGrace is the time between TERM and KILL, up to MaxKillGrace; 0 is
	// DefaultKillGrace.
	KillGrace time.Duration
	// LogOutput is the level at which lines of output are logged: "info" (also ""),
	// "debug", or "off".
	LogOutput string
}

// Limits of Exec.KillGrace.
const (
	DefaultKillGrace = 5 * time.Second
	MaxKillGrace     = 10 * time.Minute
)

// How long a command may take to be gone and its output read after KILL.
const killTime = 3 * time.Second

// Exit codes of sysexits.h.
const exitDataError = 65

// withDefaults fills in what is not set.
func (c Exec) withDefaults() Exec {
	if c.DoneCodes == nil {
		c.DoneCodes = []int{0}
	}
	if c.PermanentCodes == nil {
		c.PermanentCodes = []int{exitDataError}
	}
	if c.KillGrace == 0 {
		c.KillGrace = DefaultKillGrace
	}
	if c.LogOutput == "" {
		c.LogOutput = "info"
	}
	return c
}

// check reports every rule that c, with its defaults filled in, breaks.
func (c Exec) check() error {
	var errs []error
	if len(c.Command) == 0 || c.Command[0] == "" {
		errs = append(errs, errors.New("command: must not be empty"))
	}
	if strings.ContainsRune(strings.Join(c.Command, ""), 0) {
		errs = append(errs, errors.New("command: must not have a NUL"))
	}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("dir: must be absolute (got %q)", c.Dir))
	}
	if err := checkEnv(c.Env, c.PassEnv); err != nil {
		errs = append(errs, err)
	}
	for _, code := range slices.Concat(c.DoneCodes, c.PermanentCodes) {
		if code < 0 || code > 255 {
			errs = append(errs, fmt.Errorf("exit code %d: must be between 0 and 255", code))
		}
	}
	for _, code := range c.DoneCodes {
		if slices.Contains(c.PermanentCodes, code) {
			errs = append(errs, fmt.Errorf("exit code %d: must not be both done and permanent", code))
		}
	}
	if c.KillGrace < 0 || c.KillGrace > MaxKillGrace {
		errs = append(errs, fmt.Errorf("kill_grace: must be between 0 and %s (got %s)", MaxKillGrace, c.KillGrace))
	}
	if !slices.Contains([]string{"info", "debug", "off"}, c.LogOutput) {
		errs = append(errs, fmt.Errorf(`log_output: must be "info", "debug" or "off" (got %q)`, c.LogOutput))
	}
	return errors.Join(errs...)
}
