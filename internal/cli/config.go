package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"queued/internal/config"
	"queued/internal/daemon"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration, or print what is in force",
		Args:  group,
		RunE:  help,
	}
	cmd.AddCommand(a.configPrintCommand(), a.configCheckCommand(), a.configDocsCommand())
	return cmd
}

func (a *app) configPrintCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print every value in force and where it is from",
		Long:  "Prints every value in force and where it is from. Secrets are hidden.",
		Example: `  queued config print
  queued config print --json`,
		Args: takes(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		c, from, err := a.load(nil)
		if err != nil {
			return err
		}
		settings := config.Settings(c, from)
		if asJSON {
			return printJSON(a.Stdout, settings)
		}
		rows := make([][]string, len(settings))
		for i, s := range settings {
			rows[i] = []string{s.Key, s.Value, s.Origin}
		}
		return table(a.Stdout, "KEY VALUE FROM", rows)
	}
	return cmd
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Check the configuration, without the database",
		Long:    "Checks the configuration and reports everything that is wrong with it, with exit code 78. It needs no\ndatabase.",
		Example: `  queued config check --config new.yaml`,
		Args:    takes(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			c, _, err := a.load(nil)
			if err != nil {
				return err
			}
			if _, err := daemon.Registry(c, a.Handlers, zap.NewNop()); err != nil {
				return configError{fmt.Errorf("configuration: %w", err)}
			}
			what := a.file()
			if what == "" {
				what = "the defaults (there is no file)"
			}
			fmt.Fprintf(a.Stdout, "valid: %s\n", what)
			return nil
		},
	}
}

// configDocsCommand writes the generated files, see package config.
func (a *app) configDocsCommand() *cobra.Command {
	var sample bool
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Print the reference of the configuration",
		Hidden: true,
		Args:   takes(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&sample, "sample", false, "the annotated file instead")
	cmd.RunE = func(*cobra.Command, []string) error {
		text := config.Reference()
		if sample {
			text = config.Sample()
		}
		_, err := fmt.Fprint(a.Stdout, text)
		return err
	}
	return cmd
}
