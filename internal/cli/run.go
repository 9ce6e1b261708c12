package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"queued/internal/config"
	"queued/internal/daemon"
)

func (a *app) runCommand() *cobra.Command {
	var drain bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run jobs until asked to stop",
		Long: `Runs the jobs of the configured queues until it is asked to stop by SIGTERM or
SIGINT. Running jobs may finish then, for up to worker.shutdown_timeout; a second
signal cancels them at once. Jobs that were not finished go back with their attempt.

The embedded database is made and migrated by itself. A database server that is
away is waited for.

With --drain it stops when no due job is left, for cron. One process drains a
database at a time: when another is at it, the command says so and exits with 75.
Metrics and health are not served then, unless --http is given.`,
		Example: `  queued run --config /etc/queued/queued.yaml
  queued run --drain --max-jobs 100            a bounded batch, from cron`,
		Args: takes(cobra.NoArgs),
	}
	values := map[string]*string{}
	for _, f := range config.Flags() {
		values[f.Key] = cmd.Flags().String(f.Name, "", fmt.Sprintf("%s [`%s`]", f.Text, f.Key))
	}
	cmd.Flags().BoolVar(&drain, "drain", false, "stop when no due job is left")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags := map[string]string{}
		for _, f := range config.Flags() {
			if cmd.Flags().Changed(f.Name) {
				flags[f.Key] = *values[f.Key]
			}
		}
		return a.run(cmd.Context(), flags, drain)
	}
	return cmd
}

func (a *app) run(ctx context.Context, flags map[string]string, drain bool) (err error) {
	cfg, _, err := a.load(flags)
	if err != nil {
		return err
	}
	log := daemon.NewLogger(cfg.Log, a.Stderr, isTerminal(a.Stderr))
	registry, err := daemon.Registry(cfg, a.Handlers, log)
	if err != nil {
		return configError{fmt.Errorf("configuration: %w", err)}
	}
	if len(registry.Kinds()) == 0 {
		return configError{errors.New("configuration: no kinds are configured, so no job could be run: add `kinds:` to the file and name it with --config; see docs/configuration.md")}
	}
	if drain {
		if flags["http.listen"] == "" {
			cfg.HTTP.Listen = "off"
		}
		release, err := a.lockDrain(cfg)
		if err != nil {
			return err
		}
		defer release()
	}
	return daemon.Run(ctx, daemon.Options{
		Config: cfg, Handlers: registry, Drain: drain, Build: build(), Log: log, Signals: a.Signals, Notify: a.notifier(),
	})
}

// notifier tells systemd, when it wants to be told.
func (a *app) notifier() func(string) {
	if a.env("NOTIFY_SOCKET") == "" {
		return nil
	}
	return func(state string) { _, _ = sd.SdNotify(false, state) } // it restarts what it does not hear of; there is nobody else to tell
}

// lockDrain takes the lock that lets one process drain a database at a time. It is
// the kernel's and ends with the process, however that ends.
func (a *app) lockDrain(cfg *config.Config) (release func(), err error) {
	name := cfg.Database.Path + ".drain.lock"
	if cfg.Database.Server() {
		dir := config.StateDir(a.Environ)
		if dir == "" {
			return nil, errors.New("--drain needs a place for its lock file: set $STATE_DIRECTORY or $HOME")
		}
		db := &cfg.Database
		id := sha256.Sum256([]byte(strings.Join([]string{db.DSN.Reveal(), db.Host, fmt.Sprint(db.Port), db.Socket, db.Name, db.TablePrefix}, "\x00")))
		name = filepath.Join(dir, fmt.Sprintf("drain-%x.lock", id[:6]))
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the lock file: %w", err)
	}
	f, err := daemon.Lock(name)
	var held *daemon.LockedError
	switch {
	case errors.As(err, &held):
		return nil, busyError{fmt.Errorf("%w: it drains already, nothing was done", err)}
	case err != nil:
		return nil, err
	}
	return func() { _ = f.Close() }, nil // the lock goes with it; only the number of a process was written
}
