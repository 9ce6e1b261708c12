package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queued/internal/store"
)

// statsReport is `queued stats --json`.
type statsReport struct {
	Database databaseReport     `json:"database"`
	Queues   []store.QueueStats `json:"queues"`
	Daemons  []store.Daemon     `json:"daemons"`
}

type databaseReport struct {
	Server string `json:"server"`
	Where  string `json:"where"`
	Claim  string `json:"claim"`
	Why    string `json:"why"`
}

func (a *app) statsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show queues, daemons and the database",
		Long: fmt.Sprintf(`Shows how many jobs of each queue are due, scheduled for later, running and dead, how
long the oldest due one has waited, what happened in the last hour, and which daemons
are alive. Counts stop at %d.`, store.StatsLimit),
		Example: "  queued stats\n  queued stats --json",
		Args:    takes(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			d, err := s.Describe(ctx)
			if err != nil {
				return err
			}
			queues, err := s.Stats(ctx)
			if err != nil {
				return err
			}
			daemons, err := s.LiveDaemons(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.Stdout, statsReport{databaseReport{d.Server, d.Where, d.Claim, d.Why}, list(queues), list(daemons)})
			}
			return a.printStats(d, queues, daemons)
		})
	}
	return cmd
}

func (a *app) printStats(d store.Description, queues []store.QueueStats, daemons []store.Daemon) error {
	fmt.Fprintf(a.Stdout, "%s, %s\nclaims with %s: %s\n\n", d.Server, d.Where, d.Claim, d.Why)
	if len(queues) == 0 {
		fmt.Fprintln(a.Stdout, "no jobs")
	}
	rows := make([][]string, len(queues))
	for i, q := range queues {
		rows[i] = []string{
			q.Queue, counted(q.Due), counted(q.Scheduled), counted(q.Running), counted(q.Dead), age(q.OldestDue),
			itoa(q.Done), itoa(q.Failed), itoa(q.Buried),
		}
	}
	if len(rows) > 0 {
		if err := table(a.Stdout, "QUEUE DUE SCHEDULED RUNNING DEAD OLDEST DONE/H FAILED/H DEAD/H", rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.Stdout)
	if len(daemons) == 0 {
		fmt.Fprintln(a.Stdout, "no daemon is running: `queued run` starts one")
		return nil
	}
	rows = make([][]string, len(daemons))
	for i, d := range daemons {
		rows[i] = []string{d.Host, itoa(d.PID), d.Version, age(time.Since(d.Started)), strings.Join(d.Queues, ","), strings.Join(d.Kinds, ",")}
	}
	return table(a.Stdout, "DAEMON PID VERSION UP QUEUES KINDS", rows)
}

// counted is a count that stops at a limit.
func counted(n int64) string {
	if n >= store.StatsLimit {
		return itoa(int64(store.StatsLimit)) + "+"
	}
	return itoa(n)
}
