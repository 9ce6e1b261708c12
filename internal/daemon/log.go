package daemon

import (
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"queued/internal/config"
)

// NewLogger makes the daemon's logger: for people on a terminal, else JSON, unless
// the configuration says which.
func NewLogger(c config.Log, w io.Writer, terminal bool) *zap.Logger {
	level := zapcore.InfoLevel
	_ = level.Set(c.Level) // one of the four that the configuration allows
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.MessageKey = "time", "message"
	enc.EncodeDuration = zapcore.StringDurationEncoder
	console := c.Format == "console" || c.Format == "auto" && terminal
	var encoder zapcore.Encoder
	if console {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		if terminal {
			enc.EncodeLevel = zapcore.CapitalColorLevelEncoder
		}
		enc.ConsoleSeparator = " "
		encoder = zapcore.NewConsoleEncoder(enc)
	} else {
		enc.EncodeTime = func(t time.Time, e zapcore.PrimitiveArrayEncoder) {
			e.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		encoder = zapcore.NewJSONEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}
