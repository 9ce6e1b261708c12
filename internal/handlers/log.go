package handlers

import (
	"context"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"queued/job"
)

// logHandler logs that a job ran and is done with it. The payload, which may hold
// what does not belong into a log, is logged at debug level only, cut to a limit.
type logHandler struct {
	log *zap.Logger
}

const loggedPayload = 1 << 10 // bytes

func newLog(log *zap.Logger) job.Handler { return &logHandler{log: log} }

// Run logs j.
func (h *logHandler) Run(_ context.Context, j *job.Job) (string, error) {
	f := append(fields(j), zap.Int("payload_bytes", len(j.Payload)))
	if h.log.Core().Enabled(zapcore.DebugLevel) {
		f = append(f, zap.String("payload", job.Clean(string(j.Payload), loggedPayload)))
	}
	h.log.Info("job", f...)
	return "", nil
}
