// Godaemon is a complete daemon with a handler of its own. It has the whole command
// line of queued:
//
//	go run ./examples/godaemon enqueue greet '{"name": "Ada"}'
//	go run ./examples/godaemon run --drain
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"queued"
)

func main() {
	queued.Main(queued.Handlers{
		"greet": queued.HandlerFunc(greet),
	})
}

func greet(_ context.Context, j *queued.Job) error {
	var who struct{ Name string }
	if err := json.Unmarshal(j.Payload, &who); err != nil {
		return queued.Permanent(err) // it will not get better
	}
	if who.Name == "" {
		return queued.Permanent(errors.New("nobody to greet"))
	}
	fmt.Fprintf(os.Stdout, "Hello, %s! (job %d, attempt %d)\n", who.Name, j.ID, j.Attempt)
	return nil
}
