package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"queued/internal/store"
)

func (a *app) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up or down, or look at it",
		Long: `Brings the tables of queued to the version that this program needs. One process at a
time does so, others wait for it, and a migration that was cut off is taken up where
it stopped. The embedded database is migrated by ` + "`queued run` and `queued enqueue`" + ` as well.`,
		Args: group,
		RunE: help,
	}
	cmd.AddCommand(a.migrateUpCommand(), a.migrateDownCommand(), a.migrateStatusCommand(), a.migratePrintCommand())
	return cmd
}

func (a *app) migrateUpCommand() *cobra.Command {
	var to int
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Apply the migrations that are missing",
		Example: "  queued migrate up",
		Args:    takes(cobra.NoArgs),
	}
	cmd.Flags().IntVar(&to, "to", 0, "stop at version `N` (default: the newest)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if to < 0 {
			return usagef("--to must be a version (got %d)", to)
		}
		return a.with(cmd.Context(), anySchema, func(ctx context.Context, s *opened) error {
			n := 0
			err := s.MigrateUp(ctx, to, func(m store.Migration) {
				n++
				fmt.Fprintf(a.Stdout, "applied %d %s\n", m.Version, m.Name)
			})
			if err == nil && n == 0 {
				fmt.Fprintln(a.Stdout, "nothing to do")
			}
			return err
		})
	}
	return cmd
}

func (a *app) migrateDownCommand() *cobra.Command {
	var to int
	var yes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Undo migrations; destroys the data in what they made",
		Long: `Undoes the newest migrations down to version --to, which stays. What they made is
dropped with the data in it: down to 0, that is every job. So it needs --yes.`,
		Example: "  queued migrate down --to 0 --yes",
		Args:    takes(cobra.NoArgs),
	}
	cmd.Flags().IntVar(&to, "to", 0, "version `N` that stays; 0 is none")
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, destroy the data")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case !cmd.Flags().Changed("to"):
			return usagef("down to which version? give --to")
		case to < 0:
			return usagef("--to must be a version or 0 (got %d)", to)
		case !yes:
			return usagef("this destroys data: confirm with --yes")
		}
		return a.withSchema(cmd.Context(), func(ctx context.Context, s *opened) error {
			n := 0
			err := s.MigrateDown(ctx, to, func(m store.Migration) {
				n++
				fmt.Fprintf(a.Stdout, "undone %d %s\n", m.Version, m.Name)
			})
			if err == nil && n == 0 {
				fmt.Fprintln(a.Stdout, "nothing to do")
			}
			return err
		})
	}
	return cmd
}

func (a *app) migrateStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List migrations and whether they are applied",
		Long:  "Lists migrations and whether they are applied. The exit code is 78 when the schema is not the one\nthat this program needs.",
		Args:  takes(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withSchema(cmd.Context(), func(ctx context.Context, s *opened) error {
			all, err := s.MigrateStatus(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.Stdout, list(all))
			} else {
				rows := make([][]string, len(all))
				for i, m := range all {
					state := "missing"
					switch {
					case m.Unknown:
						state = "unknown to this program"
					case m.AppliedAt != nil:
						state = "applied"
					}
					rows[i] = []string{itoa(m.Version), m.Name, state, utcPtr(m.AppliedAt)}
				}
				err = table(a.Stdout, "VERSION NAME STATE AT", rows)
			}
			return errors.Join(err, s.CheckSchema(ctx))
		})
	}
	return cmd
}

func (a *app) migratePrintCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "print",
		Short: "Print the SQL of all migrations, for a database administrator",
		Long:  "Prints the SQL that `queued migrate up` would run on an empty database. What it is depends on\nthe server, so it is asked which one it is.",
		Args:  takes(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withSchema(cmd.Context(), func(ctx context.Context, s *opened) error {
				sql, err := s.MigratePrint(ctx)
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(a.Stdout, sql)
				return err
			})
		},
	}
}

// withSchema is with for looking at a schema that may not be there yet; it makes no file.
func (a *app) withSchema(ctx context.Context, f func(context.Context, *opened) error) error {
	c, _, err := a.load(nil)
	if err != nil {
		return err
	}
	if !c.Database.Server() {
		if _, err := os.Stat(c.Database.Path); errors.Is(err, os.ErrNotExist) {
			return a.noDatabase(c)
		}
	}
	return a.with(ctx, anySchema, f)
}
