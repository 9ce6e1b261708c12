package handlers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"queued/job"
)

const (
	busyDelay = 10 * time.Second // until a command is tried again that the machine had no room for
	// How long the end of output is waited for when the command and its group are
	// gone. Only a process that has left the group can still hold the pipes.
	drainWait = time.Second
)

type execHandler struct {
	Exec
	maxAttempts int // of jobs that don't say
	env         []string
	level       zapcore.Level
	log         *zap.Logger
}

func newExec(c Exec, p job.Policy, log *zap.Logger) (job.Handler, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	h := &execHandler{Exec: c, maxAttempts: p.MaxAttempts, env: environment(c.Env, c.PassEnv), level: zapcore.InfoLevel, log: log}
	if c.LogOutput == "debug" {
		h.level = zapcore.DebugLevel
	}
	return h, nil
}

// Run runs the command for j. When ctx ends, the command and all of its process
// group get TERM and after the grace time KILL, and Run returns once they are gone.
// What ends while it is being stopped has failed whatever its exit code, since many
// programs answer TERM with a clean exit and unfinished work.
func (h *execHandler) Run(ctx context.Context, j *job.Job) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	log := h.log.With(fields(j)...)
	cmd, runID, err := h.command(ctx, j)
	if err != nil {
		return "", err
	}
	p, err := start(cmd)
	if err != nil {
		return "", startError(err, log)
	}

	lines := newLineLog(log, h.level, h.LogOutput != "off")
	stdout := &output{lines: lines, name: "stdout"}
	stderr := &output{lines: lines, name: "stderr"}
	p.feed(j.Payload)
	p.collect(stdout, stderr)

	stopped := false
	select {
	case <-p.exited:
	case <-ctx.Done():
		stopped = true
		p.stop(h.KillGrace)
	}
	status, gone := p.end()
	if !gone {
		log.Warn("processes of the job are still there after KILL", zap.Int("process_group", p.pid))
	}
	if stopped {
		// They would do their work beside the next attempt.
		if killed, left := killMarked(runID); len(killed)+len(left) > 0 {
			log.Warn("processes of the job had left its process group", zap.Ints("killed", killed), zap.Ints("left", left))
		}
	}
	if !p.drain(drainWait) {
		log.Warn("processes of the job live on and hold its output", zap.Ints("pids", marked(runID)))
	}
	lines.end()

	if stopped {
		// As text, so that the domain does not replace all of it by its words for a timeout.
		return "", fmt.Errorf("%s: %w", context.Cause(ctx).Error(), failure(status, stdout, stderr))
	}
	switch code := status.ExitStatus(); {
	case status.Exited() && slices.Contains(h.DoneCodes, code):
		return stdout.text(job.ResultLimit), nil
	case status.Exited() && slices.Contains(h.PermanentCodes, code):
		return "", job.Permanent(failure(status, stdout, stderr))
	default:
		return "", failure(status, stdout, stderr)
	}
}

func (h *execHandler) command(ctx context.Context, j *job.Job) (cmd *exec.Cmd, runID string, err error) {
	runID = rand.Text()
	deadline, _ := ctx.Deadline()
	effective := *j
	if effective.MaxAttempts == 0 {
		effective.MaxAttempts = h.maxAttempts
	}
	own := jobEnvironment(&effective, runID, deadline)
	for _, v := range own {
		if strings.ContainsRune(v, 0) {
			name, _, _ := strings.Cut(v, "=")
			return nil, "", job.Permanent(fmt.Errorf("%s can't be set: there is a NUL in the value", name))
		}
	}
	// Not CommandContext: ctx ends the whole group, see process.stop.
	cmd = exec.Command(h.Command[0], h.Command[1:]...) //nolint:gosec,noctx // the command is the configuration's, nothing of it comes from a job
	cmd.Dir = h.Dir
	cmd.Env = slices.Concat(h.env, own)
	return cmd, runID, nil
}

// startError makes the outcome of a run that did not start.
func startError(err error, log *zap.Logger) error {
	for _, e := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) {
			log.Warn("no room to start the command, the job is put back", zap.Error(err), zap.Duration("delay", busyDelay))
			return job.Snooze(busyDelay) // not the job's fault
		}
	}
	err = fmt.Errorf("start the command: %w", err)
	if errors.Is(err, syscall.E2BIG) {
		return job.Permanent(err)
	}
	return err
}

// failure says how the command ended and what it said last.
func failure(status syscall.WaitStatus, stdout, stderr *output) error {
	var how string
	switch {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		how = "killed by signal 9 (out of memory?)"
	case status.Signaled():
		how = fmt.Sprintf("killed by signal %d (%s)", status.Signal(), status.Signal())
	case status.ExitStatus() == 128+int(syscall.SIGKILL): // a shell's words for it
		how = "exit status 137 (a child killed by signal 9, out of memory?)"
	default:
		how = fmt.Sprintf("exit status %d", status.ExitStatus())
	}
	const room = 256 // for how, and what is put in front of it
	said := stderr.text(job.ErrorLimit - room)
	if said == "" {
		said = stdout.text(job.ErrorLimit - room)
	}
	if said != "" {
		how += ": " + said
	}
	return errors.New(how)
}

// pipes are the child's ends of its standard streams.
func pipes(cmd *exec.Cmd) (stdin, stdout, stderr *os.File, err error) {
	var open []*os.File
	defer func() {
		if err != nil {
			for _, f := range open {
				f.Close()
			}
		}
	}()
	for range 3 {
		r, w, pipeErr := os.Pipe()
		if pipeErr != nil {
			return nil, nil, nil, pipeErr
		}
		open = append(open, r, w)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = open[0], open[3], open[5]
	return open[1], open[2], open[4], nil
}
