package handlers

import (
	"bytes"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"queued/job"
)

const (
	readBuffer = 8 << 10
	maxLine    = 1 << 10 // bytes of a line that are logged
	lineBurst  = 100     // lines a run may log at once
	lineRate   = 10      // and per second after that
)

// output takes what a command writes to one of its streams. Whatever the amount,
// it holds on to a tail and to one line.
type output struct {
	tail  []byte // at least the last keep bytes once there are as many
	line  []byte // of the line being read, up to maxLine
	long  bool   // the line is longer than that
	lines *lineLog
	name  string // of the stream
}

// More than is kept with a job, so that a cut shows after white space is trimmed.
const keep = job.ResultLimit + 512

// copyFrom reads r to its end, or until r is closed.
func (o *output) copyFrom(r io.Reader) {
	buf := make([]byte, readBuffer)
	for {
		n, err := r.Read(buf)
		o.write(buf[:n])
		if err != nil {
			break
		}
	}
	if len(o.line) > 0 {
		o.endLine()
	}
}

func (o *output) write(p []byte) {
	if len(o.tail)+len(p) > 2*keep {
		n := copy(o.tail, o.tail[max(len(o.tail)-keep, 0):])
		o.tail = o.tail[:n]
	}
	o.tail = append(o.tail, p...)
	if !o.lines.enabled {
		return
	}
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte{'\n'})
		room := min(maxLine-len(o.line), len(part))
		o.line = append(o.line, part[:room]...)
		o.long = o.long || room < len(part)
		if ended {
			o.endLine()
		}
		p = rest
	}
}

func (o *output) endLine() {
	o.lines.add(o.name, bytes.TrimRight(o.line, "\r"), o.long)
	o.line, o.long = o.line[:0], false
}

// text is the tail as text of at most limit bytes.
func (o *output) text(limit int) string {
	return job.CleanTail(string(bytes.TrimSpace(o.tail[max(len(o.tail)-keep, 0):])), limit)
}

// lineLog logs the lines of one run, up to a rate. Both streams share it.
type lineLog struct {
	log     *zap.Logger
	level   zapcore.Level
	enabled bool

	mu      sync.Mutex
	budget  float64 // lines that may be logged now
	last    time.Time
	dropped int
}

func newLineLog(log *zap.Logger, level zapcore.Level, enabled bool) *lineLog {
	return &lineLog{log: log, level: level, enabled: enabled && log.Core().Enabled(level), budget: lineBurst, last: time.Now()}
}

func (l *lineLog) add(stream string, line []byte, long bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.budget = min(l.budget+now.Sub(l.last).Seconds()*lineRate, lineBurst)
	l.last = now
	if l.budget < 1 {
		l.dropped++
		return
	}
	l.budget--
	f := []zap.Field{zap.String("stream", stream), zap.String("line", job.Clean(string(line), 4*maxLine))}
	if long {
		f = append(f, zap.Bool("cut", true))
	}
	l.log.Log(l.level, "output of job", f...)
}

// end says how many lines were not logged.
func (l *lineLog) end() {
	if l.dropped > 0 {
		l.log.Log(l.level, "output of job: lines not logged", zap.Int("lines", l.dropped))
	}
}
