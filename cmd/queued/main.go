// Command queued runs jobs that are rows of a database table.
package main

import (
	"context"
	"os"

	"queued/internal/cli"
)

func main() {
	p, restore := cli.FromOS()
	code := cli.Run(context.Background(), p)
	restore()
	os.Exit(code)
}
