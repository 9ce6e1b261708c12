//go:build !linux

package handlers

import (
	"errors"

	"go.uber.org/zap"

	"queued/job"
)

// Programs that only put jobs in are built for other systems, too.
func newExec(Exec, job.Policy, *zap.Logger) (job.Handler, error) {
	return nil, errors.New("type exec: needs Linux")
}
