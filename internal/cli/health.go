package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queued/internal/config"
	"queued/internal/loop"
)

func (a *app) healthCommand() *cobra.Command {
	var wait string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the daemon on this machine whether it runs jobs",
		Long: `Asks /readyz of the daemon on this machine, at http.listen, and prints what it says.
The exit code is 0 when it runs jobs and 1 when it doesn't, or isn't there.`,
		Example: "  queued health --wait 30s",
		Args:    takes(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&wait, "wait", "0", "`TIME` to wait for it to be well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		patience, err := config.ParseDuration(wait)
		if err != nil || patience < 0 {
			return usagef("--wait: must be a time with its unit, such as 30s (got %q)", wait)
		}
		c, _, err := a.load(nil)
		if err != nil {
			return err
		}
		if c.HTTP.Off() || strings.HasSuffix(c.HTTP.Listen, ":0") {
			return fmt.Errorf("it can't be asked: http.listen is %s", c.HTTP.Listen)
		}
		ctx, cancel := a.interruptible(cmd.Context())
		defer cancel()
		for end := time.Now().Add(patience); ; {
			err := ask(ctx, "http://"+c.HTTP.Listen+"/readyz")
			if err == nil {
				fmt.Fprintln(a.Stdout, "ready")
				return nil
			}
			if !time.Now().Before(end) || !loop.Sleep(ctx, 100*time.Millisecond, nil) {
				return err
			}
		}
	}
	return cmd
}

// ask returns nil when the daemon is ready, else why not.
func ask(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Without the proxy of the environment: it is this machine's loopback.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no daemon answers: %w", err)
	}
	defer resp.Body.Close()
	var body struct{ Reasons []string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body); err != nil {
		return fmt.Errorf("%s is no daemon of queued: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New("not ready: " + plain(strings.Join(body.Reasons, "; ")))
	}
	return nil
}
