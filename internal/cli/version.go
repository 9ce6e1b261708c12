package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"queued/internal/admin"
)

// build reads what the Go command stamped into the program: the version of
// module queued, which is the program's own or one that a Go program brings along.
func build() admin.Build {
	b := admin.Build{Version: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "queued" && m.Version != "" {
			b.Version = m.Version
		}
	}
	if info.Main.Path == "queued" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		b := build()
		if asJSON {
			return printJSON(a.Stdout, struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
			}{b.Version, b.Revision, b.Go})
		}
		fmt.Fprintf(a.Stdout, "queued %s (%s)\n", b.Version, b.Go)
		return nil
	}
	return cmd
}
