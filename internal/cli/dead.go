package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"queued/internal/store"
)

const deadBatch = 500 // dead letters that are looked at together

func (a *app) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List, show, replay and discard dead letters",
		Long: `Looks at the jobs that failed for good, and brings them back. A dead letter has an
id of its own; the job's former id stands beside it.`,
		Args: group,
		RunE: help,
	}
	cmd.AddCommand(a.deadListCommand(), a.deadShowCommand(),
		a.deadEach("replay", "Put dead letters back into the queue",
			`Puts dead letters back as new jobs: due now, attempts at 0. The dead letter stays and
is marked with the new job's id; it is not replayed twice.`,
			`  queued dead replay 4 5
  queued dead replay --kind mail --reason max_attempts --dry-run
  queued dead replay --all --yes`,
			"replay", "replayed", false, func(ctx context.Context, s *opened, id int64) (string, error) {
				jobID, err := s.ReplayDead(ctx, id)
				return fmt.Sprintf(" as job %d", jobID), err
			}),
		a.deadEach("discard", "Delete dead letters", "Deletes dead letters for good.",
			`  queued dead discard 4
  queued dead discard --reason expired --dry-run`,
			"discard", "discarded", true, func(ctx context.Context, s *opened, id int64) (string, error) {
				return "", s.DiscardDead(ctx, id)
			}))
	return cmd
}

func deadFilter(cmd *cobra.Command, f *store.DeadFilter) {
	fs := cmd.Flags()
	fs.StringVar(&f.Queue, "queue", "", "only those of queue `NAME`")
	fs.StringVar(&f.Kind, "kind", "", "only those of kind `NAME`")
	fs.StringVar(&f.Reason, "reason", "", "only those with `REASON`: permanent, max_attempts, worker_died, expired, unknown_kind or bad_row")
	fs.StringVar(&f.Key, "key", "", "only those with `KEY`")
}

func (a *app) deadListCommand() *cobra.Command {
	var f store.DeadFilter
	var asJSON, replayed bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Example: `  queued dead list --kind mail
  queued dead list --replayed=false --json`,
		Args: takes(cobra.NoArgs),
	}
	deadFilter(cmd, &f)
	pageFlags(cmd, &f.Limit, &f.Before)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "only those that were replayed, or with =false those that were not")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkPage(f.Limit, f.Before); err != nil {
			return err
		}
		if cmd.Flags().Changed("replayed") {
			f.Replayed = &replayed
		}
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			dead, err := s.ListDead(ctx, f)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.Stdout, list(dead))
			}
			rows := make([][]string, len(dead))
			for i, d := range dead {
				firstLine, _, _ := strings.Cut(d.Error, "\n")
				replay := ""
				if d.ReplayedJobID != 0 {
					replay = "job " + itoa(d.ReplayedJobID)
				}
				rows[i] = []string{
					itoa(d.ID), itoa(d.JobID), d.Queue, d.Kind, d.Reason, itoa(d.Attempts), utc(d.DiedAt), replay, short(d.Key, 40), short(firstLine, 60),
				}
			}
			if err := table(a.Stdout, "ID JOB QUEUE KIND REASON ATTEMPTS DIED REPLAYED KEY ERROR", rows); err != nil {
				return err
			}
			if len(dead) == f.Limit {
				a.more(dead[len(dead)-1].ID)
			}
			return nil
		})
	}
	return cmd
}

// deadDetail is a dead letter with its failed attempts.
type deadDetail struct {
	store.DeadRow
	Errors []store.ErrorRow `json:"errors"`
}

func (a *app) deadShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one dead letter with its payload and failed attempts",
		Example: "  queued dead show 4",
		Args:    takes(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args[0])
		if err != nil {
			return err
		}
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			d, err := s.GetDead(ctx, id)
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("there is no dead letter %d: `queued dead list` shows those that are there", id)
			}
			if err != nil {
				return err
			}
			failed, err := s.Errors(ctx, d.JobKey)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.Stdout, deadDetail{d, list(failed)})
			}
			return a.fields([][2]string{
				{"id", itoa(d.ID)},
				{"job", itoa(d.JobID)},
				{"queue", d.Queue},
				{"kind", d.Kind},
				{"key", d.Key},
				{"reason", d.Reason},
				{"priority", itoa(d.Priority)},
				{"attempts", attempts(d.Attempts, d.MaxAttempts)},
				{"timeout", timeoutMS(d.TimeoutMS)},
				{"due", utc(d.AvailableAt)},
				{"created", utc(d.CreatedAt)},
				{"died", utc(d.DiedAt)},
				{"replays", count(d.Replays)},
				{"replayed", utcPtr(d.ReplayedAt)},
				{"as job", count(int(d.ReplayedJobID))},
			}, [][2]string{{"error", d.Error}, {"payload", string(d.Payload)}}, failed)
		})
	}
	return cmd
}

// deadEach is a command on dead letters by id or by filter. do returns what is to
// be added to the line of a single one.
func (a *app) deadEach(name, what, text, example, verb, done string, replayedToo bool,
	do func(ctx context.Context, s *opened, id int64) (string, error),
) *cobra.Command {
	var f store.DeadFilter
	var all, dryRun, yes bool
	cmd := &cobra.Command{
		Use:   name + " [ID...]",
		Short: what,
		Long: text + `

They are named by id, or chosen by flags, or with --all. What is chosen is counted
first and has to be confirmed, on the terminal or with --yes. It is done in small
steps: an interrupted command says how far it came and can be given again.`,
		Example: example,
		Args:    cobra.ArbitraryArgs,
	}
	deadFilter(cmd, &f)
	fs := cmd.Flags()
	fs.BoolVar(&all, "all", false, "all of them")
	fs.BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	fs.BoolVar(&yes, "yes", false, "don't ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := parseIDs(args)
		if err != nil {
			return err
		}
		chosen := f.Queue != "" || f.Kind != "" || f.Reason != "" || f.Key != ""
		switch {
		case len(ids) > 0 && (chosen || all || dryRun):
			return usagef("ids can't be given together with --all, --dry-run and the flags that choose")
		case all && chosen:
			return usagef("--all can't be given together with the flags that choose")
		case len(ids) == 0 && !all && !chosen:
			return usagef("which ones? give ids, flags that choose, or --all; see `%s --help`", cmd.CommandPath())
		}
		if !replayedToo {
			no := false
			f.Replayed = &no
		}
		return a.with(cmd.Context(), existing, func(ctx context.Context, s *opened) error {
			if len(ids) > 0 {
				return a.each("dead letter", ids, done, func(id int64) (string, error) { return do(ctx, s, id) })
			}
			b := &bulk{a: a, s: s, filter: f, verb: verb, done: done, do: do, progress: progress{w: a.Stderr, on: isTerminal(a.Stderr)}}
			return b.run(ctx, dryRun, yes)
		})
	}
	return cmd
}

// bulk does something to all dead letters that a filter chooses, in pages by id so
// that their number does not matter.
type bulk struct {
	a          *app
	s          *opened
	filter     store.DeadFilter
	verb, done string
	do         func(ctx context.Context, s *opened, id int64) (string, error)
	progress   progress
}

func (b *bulk) run(ctx context.Context, dryRun, yes bool) error {
	total, newest, groups := 0, int64(0), map[[2]string]int{}
	err := b.pages(ctx, 0, func(d *store.DeadRow) error {
		total++
		newest = max(newest, d.ID)
		groups[[2]string{d.Kind, d.Reason}]++
		return nil
	})
	if err != nil {
		return err
	}
	if total == 0 {
		fmt.Fprintf(b.a.Stdout, "no dead letter to %s\n", b.verb)
		return nil
	}
	if dryRun || !yes {
		var rows [][]string
		for g, n := range groups {
			rows = append(rows, []string{g[0], g[1], itoa(n)})
		}
		slices.SortFunc(rows, slices.Compare[[]string])
		out := b.a.Stdout
		if !dryRun {
			out = b.a.Stderr
		}
		if err := table(out, "KIND REASON COUNT", rows); err != nil {
			return err
		}
	}
	if dryRun {
		fmt.Fprintf(b.a.Stdout, "%s would be %s\n", letters(total), b.done)
		return nil
	}
	if !yes {
		if err := b.confirm(total); err != nil {
			return err
		}
	}
	return b.apply(ctx, total, newest)
}

func (b *bulk) confirm(total int) error {
	if !isTerminal(b.a.Stdin) || !isTerminal(b.a.Stderr) {
		return usagef("%s would be %s: confirm with --yes", letters(total), b.done)
	}
	fmt.Fprintf(b.a.Stderr, "%s %s? [y/N] ", strings.ToUpper(b.verb[:1])+b.verb[1:], letters(total))
	answer, _ := bufio.NewReader(b.a.Stdin).ReadString('\n') // an end of input is a no
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("not confirmed, nothing was done")
	}
	return nil
}

// apply goes through the chosen ones again. Those that have died since are not
// among them: what is replayed and dies at once would come round again.
func (b *bulk) apply(ctx context.Context, total int, newest int64) error {
	ok, duplicates := 0, 0
	err := b.pages(ctx, newest+1, func(d *store.DeadRow) error {
		_, err := b.do(ctx, b.s, d.ID)
		switch {
		case err == nil:
			ok++
		case errors.Is(err, store.ErrDuplicate):
			duplicates++
		case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrState): // another one was faster
		default:
			return err
		}
		b.progress.show("%d of %d", ok, total)
		return nil
	})
	b.progress.end()
	fmt.Fprintf(b.a.Stdout, "%s %s\n", letters(ok), b.done)
	if duplicates > 0 {
		b.a.complain("%s left as they are: a job with the same key is there already", letters(duplicates))
	}
	if err != nil {
		return fmt.Errorf("stopped: %w", err)
	}
	if duplicates > 0 {
		return partError{}
	}
	return nil
}

// pages calls f for every dead letter below id before (0: all), newest first.
func (b *bulk) pages(ctx context.Context, before int64, f func(*store.DeadRow) error) error {
	filter := b.filter
	filter.Limit, filter.Before = deadBatch, before
	for {
		page, err := b.s.ListDead(ctx, filter)
		if err != nil {
			return err
		}
		for i := range page {
			if err := f(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < deadBatch {
			return nil
		}
		filter.Before = page[len(page)-1].ID
	}
}
