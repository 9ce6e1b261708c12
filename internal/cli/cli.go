// Package cli is the command line of queued. Nothing in it touches the process:
// arguments, streams, environment and signals come in, an exit code goes out.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/term"

	"queued/internal/config"
	"queued/internal/daemon"
	"queued/internal/store"
	"queued/job"
)

// Process is what a command line gets from its process.
type Process struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
	Dir            string                 // working directory
	ConfigFile     string                 // read when no other is named, if it is there
	Signals        <-chan os.Signal       // ask for a stop; see FromOS
	Handlers       map[string]job.Handler // of a Go program, by kind
}

// FromOS is the process's own Process. From here on SIGINT and SIGTERM go to its
// commands; restore gives them back.
func FromOS() (p Process, restore func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	dir, err := os.Getwd()
	if err != nil {
		dir = "/" // it was removed; only relative paths need it
	}
	return Process{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Environ: os.Environ(), Dir: dir, ConfigFile: "/etc/queued/queued.yaml", Signals: signals,
	}, func() { signal.Stop(signals) }
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 64 // EX_USAGE
	exitBusy   = 75 // EX_TEMPFAIL
	exitConfig = 78 // EX_CONFIG
)

const exitCodes = `  0   it worked, or the daemon was asked to stop or stopped as configured
  1   it failed, wholly or in part; what to do stands in the message
  64  wrong usage of the command line
  75  run --drain: another process drains already, nothing was done
  78  the configuration or the schema of the database is not valid; starting again does not help`

// Run runs a command line and returns the exit code.
func Run(ctx context.Context, p Process) int {
	a := &app{Process: p}
	root := a.root()
	root.SetArgs(p.Args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code, msg := explain(err)
	if msg != "" {
		fmt.Fprintf(p.Stderr, "queued: %s\n", msg)
	}
	return code
}

type app struct {
	Process
	configFile string // --config
	database   string // --database
}

// Errors that decide the exit code.
type (
	usageError  struct{ error } // wrong usage
	configError struct{ error } // the configuration can't be worked with
	busyError   struct{ error } // somebody else is at it
	// partError: some of it failed and was said already.
	partError struct{}
)

func (e usageError) Unwrap() error  { return e.error }
func (e configError) Unwrap() error { return e.error }
func (e busyError) Unwrap() error   { return e.error }
func (partError) Error() string     { return "" }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// explain turns an error into the exit code and the words for it.
func explain(err error) (code int, msg string) {
	msg = err.Error()
	hint := ""
	var (
		usage  usageError
		conf   configError
		busy   busyError
		invald *config.Error
		schema *store.SchemaError
	)
	code = exitFailed
	switch {
	case errors.As(err, &usage):
		code = exitUsage
	case errors.As(err, &busy):
		code = exitBusy
	case errors.As(err, &invald), errors.As(err, &conf):
		code = exitConfig
	case errors.As(err, &schema): // has its hint
		code = exitConfig
	case errors.Is(err, store.ErrSchema):
		code = exitConfig
	case errors.Is(err, store.ErrDenied):
		hint = "check user, password and privileges; `queued config print` shows what is used"
	case errors.Is(err, store.ErrUnavailable):
		hint = "is it up, and is it the right one? `queued config print` shows where it is looked for"
	case errors.Is(err, context.Canceled):
		msg = "interrupted: " + msg
	}
	if hint != "" {
		msg += "; " + hint
	}
	return code, msg
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "queued",
		Short: "Runs jobs that are rows of a database table",
		Long: `queued runs jobs that are rows of a database table: of MySQL or MariaDB, or of an
embedded database in one file when no server is configured.

Exit codes:
` + exitCodes,
		Example: `  queued enqueue hello '{"name": "world"}'     put a job in
  queued run --config queued.yaml              run jobs until Ctrl-C
  queued stats                                 see what is there`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          group,
		RunE:          help,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.configFile, "config", "", "configuration `FILE` (default $QUEUED_CONFIG, or /etc/queued/queued.yaml if it is there)")
	f.StringVar(&a.database, "database", "", "`FILE` with the embedded database [database.path]")
	root.AddCommand(
		a.runCommand(), a.enqueueCommand(), a.jobsCommand(), a.deadCommand(), a.statsCommand(), a.healthCommand(),
		a.migrateCommand(), a.configCommand(), a.benchCommand(), a.versionCommand(),
		&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: "Exit codes of all commands:\n\n" + exitCodes},
	)
	return root
}

// group is for commands that only have others below them.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := ""
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		near = "did you mean " + s[0] + "? "
	}
	return usagef("unknown command %q; %ssee `%s --help`", args[0], near, cmd.CommandPath())
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// takes wraps a rule on arguments.
func takes(rule cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := rule(cmd, args); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// interruptible is ctx, ended by the first signal as well. For all commands but
// run, which takes the signals itself.
func (a *app) interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-a.Signals:
			cancel()
			// A second one ends the process: it may be waiting for standard input.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// ---- configuration and store

func (a *app) env(name string) string {
	for _, e := range a.Environ {
		if n, v, _ := strings.Cut(e, "="); n == name {
			return v
		}
	}
	return ""
}

// file is the configuration file to read, "" for none.
func (a *app) file() string {
	if a.configFile != "" {
		return a.configFile
	}
	if f := a.env(config.FileVariable); f != "" {
		return f
	}
	if _, err := os.Stat(a.ConfigFile); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return a.ConfigFile // one that can't be looked at is an error, not a reason to use the defaults
}

func (a *app) load(flags map[string]string) (*config.Config, config.Origins, error) {
	all := map[string]string{}
	maps.Copy(all, flags)
	if a.database != "" {
		all["database.path"] = a.database
	}
	return config.Load(config.Sources{File: a.file(), Environ: a.Environ, Flags: all, Dir: a.Dir})
}

// opened is a store with the configuration that it came from.
type opened struct {
	store.Bencher
	cfg *config.Config
}

// How a command wants the database.
type want uint8

const (
	existing  want = iota // with a schema that fits
	created               // the same, and the embedded one is made and migrated if need be
	anySchema             // as it is
)

// open opens the configured database.
func (a *app) open(ctx context.Context, w want) (*opened, error) {
	c, _, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	embedded := !c.Database.Server()
	if embedded && w == existing {
		if _, err := os.Stat(c.Database.Path); errors.Is(err, os.ErrNotExist) {
			return nil, a.noDatabase(c)
		}
	}
	st, err := daemon.OpenStore(c, zap.NewNop())
	if err != nil {
		return nil, err
	}
	if embedded && w == created {
		err = st.MigrateUp(ctx, 0, nil)
	}
	if err == nil && w != anySchema {
		err = st.CheckSchema(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &opened{Bencher: st, cfg: c}, nil
}

func (a *app) noDatabase(c *config.Config) error {
	return fmt.Errorf("there is no database at %s: `queued enqueue` and `queued run` make it; if it is elsewhere, give --database or set database.path", c.Database.Path)
}

// with runs f on the opened database and closes it.
func (a *app) with(ctx context.Context, w want, f func(ctx context.Context, s *opened) error) (err error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	s, err := a.open(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return f(ctx, s)
}

// ---- streams

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// complain says what is wrong with a part of the work.
func (a *app) complain(format string, args ...any) {
	fmt.Fprintf(a.Stderr, "queued: "+format+"\n", args...)
}

// path makes a path of the command line absolute.
func (a *app) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(a.Dir, name)
}
