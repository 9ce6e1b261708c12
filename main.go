package queued

import (
	"context"
	"os"

	"queued/internal/cli"
)

// Handlers are a program's own handlers by kind. The configuration needs an entry for
// such a kind only to set something: `handler: go`, and then its attempts, timeout or backoff.
type Handlers = map[string]Handler

// Main makes the calling program a daemon: it has the command line, configuration and
// guarantees of the command queued, and runs the kinds of handlers with them. It
// takes over the process, with its arguments and signals, and does not return.
func Main(handlers Handlers) {
	p, restore := cli.FromOS()
	p.Handlers = handlers
	code := cli.Run(context.Background(), p)
	restore()
	os.Exit(code)
}
