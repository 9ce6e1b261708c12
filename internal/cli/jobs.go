package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"queued/internal/store"
	"queued/job"
)

const maxList = 1000 // rows of a list, see store.JobFilter

func (a *app) jobsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List, show, retry and cancel jobs",
		Long:  "Looks at the jobs that wait, run or have ended, and steers them. Dead letters are apart: see `queued dead`.",
		Args:  group,
		RunE:  help,
	}
	cmd.AddCommand(a.jobsListCommand(), a.jobsShowCommand(),
		a.eachJob("retry ID...", "Make jobs due now",
			"Makes ready jobs due now, and cancelled ones ready again with their attempts at 0.\nRunning and done jobs are refused.",
			"  queued jobs retry 17 18", "due now", store.Store.RetryJob),
		a.eachJob("cancel ID...", "Cancel jobs",
			"Ends ready and running jobs. A running one's handler is told at the next heartbeat.\nJobs that have ended are refused.",
			"  queued jobs cancel 17", "cancelled", store.Store.CancelJob))
	return cmd
}

func (a *app) jobsListCommand() *cobra.Command {
	var f store.JobFilter
	var state string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, newest first",
		Example: `  queued jobs list --state running
  queued jobs list --kind mail --limit 10 --json`,
		Args: takes(cobra.NoArgs),
	}
	fs := cmd.Flags()
	fs.StringVar(&state, "state", "", "only those in `STATE`: ready, running, done or cancelled")
	fs.StringVar(&f.Queue, "queue", "", "only those of queue `NAME`")
	fs.StringVar(&f.Kind, "kind", "", "only those of kind `NAME`")
	fs.StringVar(&f.Key, "key", "", "only the one with `KEY`")
	pageFlags(cmd, &f.Limit, &f.Before)
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkPage(f.Limit, f.Before); err != nil {
			return err
		}
		f.State = job.State(state)
		switch f.State {
		case "", job.Ready, job.Running, job.Done, job.Cancelled:
		case job.Dead:
			return usagef("dead letters are listed by `queued dead list`")
		default:
			return usagef("--state must be ready, running, done or cancelled (got %q)", state)
		}
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			jobs, err := s.ListJobs(ctx, f)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.Stdout, list(jobs))
			}
			rows := make([][]string, len(jobs))
			for i, j := range jobs {
				rows[i] = []string{
					itoa(j.ID), j.Queue, j.Kind, string(j.State), itoa(j.Priority), itoa(j.Attempts),
					utc(j.AvailableAt), utcPtr(j.FinishedAt), short(j.Key, 40),
				}
			}
			if err := table(a.Stdout, "ID QUEUE KIND STATE PRIORITY ATTEMPTS DUE ENDED KEY", rows); err != nil {
				return err
			}
			if last := len(jobs) - 1; len(jobs) == f.Limit {
				a.more(jobs[last].ID)
			}
			return nil
		})
	}
	return cmd
}

func pageFlags(cmd *cobra.Command, limit *int, before *int64) {
	cmd.Flags().IntVar(limit, "limit", 50, "at most `N`, up to "+itoa(maxList))
	cmd.Flags().Int64Var(before, "before", 0, "only those with an id below `ID`, for the next page")
}

func checkPage(limit int, before int64) error {
	switch {
	case limit < 1 || limit > maxList:
		return usagef("--limit must be between 1 and %d (got %d)", maxList, limit)
	case before < 0:
		return usagef("--before must be an id (got %d)", before)
	}
	return nil
}

// more says how to go on in a list that was cut.
func (a *app) more(last int64) {
	if last > 1 {
		fmt.Fprintf(a.Stderr, "there may be more: --before %d\n", last)
	}
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usagef("an id is a number above 0 (got %q)", text)
	}
	return id, nil
}

func parseIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		var err error
		if ids[i], err = parseID(arg); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// jobDetail is a job with its failed attempts.
type jobDetail struct {
	store.JobRow
	Errors []store.ErrorRow `json:"errors"`
}

func (a *app) jobsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one job with its payload, result and failed attempts",
		Example: "  queued jobs show 17",
		Args:    takes(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args[0])
		if err != nil {
			return err
		}
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			j, err := s.GetJob(ctx, id)
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("there is no job %d: it may be a dead letter (`queued dead list`), or was removed after its time", id)
			}
			if err != nil {
				return err
			}
			failed, err := s.Errors(ctx, j.JobKey())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.Stdout, jobDetail{j, list(failed)})
			}
			return a.fields([][2]string{
				{"id", itoa(j.ID)},
				{"queue", j.Queue},
				{"kind", j.Kind},
				{"key", j.Key},
				{"state", string(j.State)},
				{"priority", itoa(j.Priority)},
				{"attempts", attempts(j.Attempts, j.MaxAttempts)},
				{"timeout", timeoutMS(j.TimeoutMS)},
				{"due", utc(j.AvailableAt)},
				{"created", utc(j.CreatedAt)},
				{"claimed", utcPtr(j.ClaimedAt)},
				{"ended", utcPtr(j.FinishedAt)},
				{"expires", utcPtr(j.ExpiresAt)},
				{"replays", count(j.Replays)},
			}, [][2]string{{"payload", string(j.Payload)}, {"result", j.Result}}, failed)
		})
	}
	return cmd
}

func attempts(n, limit int) string {
	if limit == 0 {
		return itoa(n)
	}
	return itoa(n) + " of " + itoa(limit)
}

func timeoutMS(ms int64) string {
	if ms == 0 {
		return ""
	}
	return itoa(ms) + "ms"
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return itoa(n)
}

// fields prints what is known of one job: short values, then long ones, then the
// failed attempts. Empty ones are left out.
func (a *app) fields(values, long [][2]string, failed []store.ErrorRow) error {
	var b strings.Builder
	for _, v := range values {
		if v[1] != "" {
			fmt.Fprintf(&b, "%-9s %s\n", v[0], plain(v[1]))
		}
	}
	for _, v := range long {
		if v[1] != "" {
			b.WriteString(v[0] + "\n" + block(v[1]))
		}
	}
	for _, e := range failed {
		fmt.Fprintf(&b, "attempt %d failed at %s\n%s", e.Attempt, utc(e.FailedAt), block(e.Error))
	}
	_, err := a.Stdout.Write([]byte(b.String()))
	return err
}

// eachJob is a command that does something to jobs by id. One that can't be done
// does not keep it from the others.
func (a *app) eachJob(use, what, text, example, done string, do func(store.Store, context.Context, int64) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: what, Long: text, Example: example,
		Args: takes(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
				return a.each("job", ids, done, func(id int64) (string, error) { return "", do(s, ctx, id) })
			})
		},
	}
}

// each calls do for every id and says how that went. What do returns is added to
// the line. An error that is not about the one row ends it.
func (a *app) each(noun string, ids []int64, done string, do func(id int64) (string, error)) error {
	failed := false
	for _, id := range ids {
		more, err := do(id)
		switch {
		case err == nil:
			fmt.Fprintf(a.Stdout, "%s %d %s%s\n", noun, id, done, more)
		case errors.Is(err, store.ErrNotFound):
			a.complain("there is no %s %d", noun, id)
			failed = true
		case errors.Is(err, store.ErrState), errors.Is(err, store.ErrDuplicate):
			a.complain("%s %d: %s", noun, id, err)
			failed = true
		default:
			return fmt.Errorf("%s %d: %w", noun, id, err)
		}
	}
	if failed {
		return partError{}
	}
	return nil
}
