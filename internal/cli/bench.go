package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"queued/internal/bench"
	"queued/internal/daemon"
	"queued/internal/store"
)

func (a *app) benchCommand() *cobra.Command {
	cfg := bench.Config{References: true}
	var asJSON, noReferences bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast jobs are run on the configured database",
		Long: `Drains no-op jobs through the daemon's own code on the configured database, and measures
beside it, in the same run, what a simple library does (each worker claims one job and
finishes it) and what the server could do at most (the same rows updated twice by
primary key). The two ratios hold on other machines, the rates don't.

It works in a queue of its own, which it removes at the end. Other jobs are left alone,
but they take part in the load: don't run it beside a busy daemon.`,
		Example: `  queued bench
  queued bench --jobs 50000 --done-rows 2000000 --json`,
		Args: takes(cobra.NoArgs),
	}
	fs := cmd.Flags()
	fs.IntVar(&cfg.Jobs, "jobs", 200_000, "`N` jobs to drain")
	fs.IntVar(&cfg.Workers, "workers", 16, "`N` workers of each daemon")
	fs.IntVar(&cfg.Daemons, "daemons", 1, "`N` daemons side by side")
	fs.IntVar(&cfg.Payload, "payload", 200, "`BYTES` of payload of a job")
	fs.IntVar(&cfg.DoneRows, "done-rows", 0, "`N` finished rows in the table beforehand")
	fs.BoolVar(&cfg.OldSnapshot, "old-snapshot", false, "while another session holds a snapshot from before the start")
	fs.IntVar(&cfg.Pickups, "pickups", 100, "`N` jobs inserted one at a time into the idle queue, for the latency")
	fs.BoolVar(&noReferences, "no-references", false, "leave out what it is compared with")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, f := range []struct {
			name      string
			value, lo int
		}{
			{"jobs", cfg.Jobs, 1},
			{"workers", cfg.Workers, 1},
			{"daemons", cfg.Daemons, 1},
			{"payload", cfg.Payload, 0},
			{"done-rows", cfg.DoneRows, 0},
			{"pickups", cfg.Pickups, 1},
		} {
			if f.value < f.lo {
				return usagef("--%s must be at least %d (got %d)", f.name, f.lo, f.value)
			}
		}
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		// Once, for the embedded database, the schema and the errors that go with them.
		s, err := a.open(ctx, created)
		if err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
		cfg.References = !noReferences
		cfg.Open = func() (store.Bencher, error) { return daemon.OpenStore(s.cfg, zap.NewNop()) }
		cfg.Progress = func(step string) { fmt.Fprintf(a.Stderr, "%s\n", step) }
		r, err := bench.Run(ctx, cfg)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(a.Stdout, r)
		}
		_, err = fmt.Fprint(a.Stdout, benchReport(r))
		return err
	}
	return cmd
}

func benchReport(r bench.Result) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-22s "+format+"\n", append([]any{name}, args...)...)
	}
	line("server", "%s, claims with %s", r.Server, r.Claim)
	line("jobs", "%d by %d daemon(s) of %d workers", r.Jobs, r.Daemons, r.Workers)
	if r.DoneRows > 0 {
		line("beside", "%d finished rows", r.DoneRows)
	}
	if r.OldSnapshot {
		line("beside", "an old snapshot")
	}
	line("enqueued", "%.0f jobs/s", r.EnqueueRate)
	line("run", "%.0f jobs/s", r.Rate)
	if r.NaiveRate > 0 {
		line("  naive loop", "%.0f jobs/s: %.1f times that", r.NaiveRate, r.OverNaive)
		line("  limit", "%.0f jobs/s: %.2f of that", r.LimitRate, r.ShareOfLimit)
	}
	line("round trips", "%.4f a job", r.RoundTrips)
	line("claim", "%s", quantiles(r.Claims))
	line("empty poll", "%s", quantiles(r.EmptyPoll))
	line("pick-up when idle", "%s, of %d jobs", quantiles(r.Pickup), r.PickupSamples)
	line("idle daemon", "%.1f requests/s", r.IdleRequests)
	line("memory", "%.0f MB at most", float64(r.RSS)/1e6)
	return b.String()
}

func quantiles(s bench.Spread) string {
	d := func(seconds float64) time.Duration {
		return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s", d(s.P50), d(s.P99))
}
