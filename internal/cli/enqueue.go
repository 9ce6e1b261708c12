package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"queued/internal/config"
	"queued/internal/store"
	"queued/job"
)

const (
	enqueueBatch = 500      // jobs in one transaction
	lineRoom     = 64 << 10 // bytes of a line beside the payload
)

// jobFlags are the fields of a job on the command line. With --file they hold for
// lines that don't say otherwise.
type jobFlags struct {
	queue, key, delay, at, expires, timeout string
	priority, maxAttempts                   int
}

func (a *app) enqueueCommand() *cobra.Command {
	var f jobFlags
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "enqueue KIND [PAYLOAD]",
		Short: "Put jobs in",
		Long: `Puts one job in, or with --file many.

PAYLOAD is JSON; without it the handler gets {}, and - reads it from standard input.
A job whose --key is there already, waiting, running, done or cancelled, is not put
in again; that is not an error.

A file has one JSON object a line, with the keys kind, payload, queue, key, delay,
at, expires_at, priority, max_attempts and timeout. KIND and the flags hold for lines
that don't say otherwise. Lines that are wrong are named and left out, the others are
put in, 500 in a transaction; the exit code is 1 then. An interrupted command says
which lines are in. Giving the file again is safe for jobs with a key.`,
		Example: `  queued enqueue mail '{"to": "ann@example.org"}' --key welcome-17
  queued enqueue report --delay 30m --timeout 2h --max-attempts 3
  queued enqueue report --at 2030-01-31T06:00:00+01:00
  queued enqueue --file jobs.jsonl
  zcat jobs.gz | queued enqueue mail --queue bulk --file -`,
		Args: takes(cobra.MaximumNArgs(2)),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.queue, "queue", "", "`NAME` of the queue (default \""+job.DefaultQueue+"\")")
	fs.StringVar(&f.key, "key", "", "idempotency `KEY`: of all jobs with it, one is put in")
	fs.StringVar(&f.delay, "delay", "", "`TIME` until it is due: 90s, 30m, 2d")
	fs.StringVar(&f.at, "at", "", "`WHEN` it is due: 2030-01-31T06:00:00Z, or with an offset such as +01:00")
	fs.StringVar(&f.expires, "expires-at", "", "`WHEN` it is not run any more")
	fs.IntVar(&f.priority, "priority", 0, fmt.Sprintf("`N` from %d to %d, higher ones are run first", job.MinPriority, job.MaxPriority))
	fs.IntVar(&f.maxAttempts, "max-attempts", 0, "`N` runs before it is a dead letter (default: the kind's)")
	fs.StringVar(&f.timeout, "timeout", "", "`TIME` that one run may take (default: the kind's)")
	fs.StringVar(&file, "file", "", "`FILE` with one job a line, - is standard input")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var kind string
		if len(args) > 0 {
			kind = args[0]
		}
		base, err := f.job(kind)
		switch {
		case err != nil:
			return usageError{err}
		case file != "" && len(args) > 1:
			return usagef("a payload can't be given together with --file: it stands in the file")
		case file != "" && f.key != "":
			return usagef("--key can't be given together with --file: all lines would be the same job")
		case file == "" && kind == "":
			return usagef("what kind of job? usage: %s", cmd.UseLine())
		}
		return a.with(cmd.Context(), created, func(ctx context.Context, s *opened) error {
			if file != "" {
				return a.enqueueFile(ctx, s, base, file, asJSON)
			}
			if len(args) > 1 {
				base.Payload = json.RawMessage(args[1])
			}
			return a.enqueueOne(ctx, s, base, asJSON)
		})
	}
	return cmd
}

func (f *jobFlags) job(kind string) (job.New, error) {
	n := job.New{Kind: kind, Queue: f.queue, Key: f.key, Priority: f.priority, MaxAttempts: f.maxAttempts}
	return n, errors.Join(
		parseTime("--at", f.at, &n.At), parseTime("--expires-at", f.expires, &n.ExpiresAt),
		parseDuration("--delay", f.delay, &n.Delay), parseDuration("--timeout", f.timeout, &n.Timeout))
}

func parseTime(field, text string, into *time.Time) error {
	if text == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%s: must be a time with its zone, such as 2030-01-31T06:00:00Z or 2030-01-31T06:00:00+01:00 (got %q)", field, text)
	}
	*into = t
	return nil
}

func parseDuration(field, text string, into *time.Duration) error {
	if text == "" {
		return nil
	}
	d, err := config.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%s: %w (got %q)", field, err, text)
	}
	*into = d
	return nil
}

// payloadLimit is the largest payload that surely gets in, in bytes.
func payloadLimit(ctx context.Context, s *opened) (int, error) {
	limit := int(s.cfg.PayloadLimit)
	d, err := s.Describe(ctx)
	if err != nil {
		return 0, err
	}
	if d.Payload > 0 {
		limit = min(limit, d.Payload)
	}
	return limit, nil
}

func (a *app) enqueueOne(ctx context.Context, s *opened, n job.New, asJSON bool) error {
	limit, err := payloadLimit(ctx, s)
	if err != nil {
		return err
	}
	if string(n.Payload) == "-" {
		data, err := io.ReadAll(io.LimitReader(a.Stdin, int64(limit)+1))
		if err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
		n.Payload = bytes.TrimSpace(data)
	}
	if err := n.Validate(limit); err != nil {
		var fe *job.FieldError
		if errors.As(err, &fe) && fe.Field == "payload" && !json.Valid(n.Payload) {
			err = fmt.Errorf("%w; text needs double quotes within the shell's, such as '\"hello\"'", err)
		}
		return usageError{err}
	}
	got, err := s.Enqueue(ctx, []job.New{n})
	if err != nil {
		return uncertain(err, "the job")
	}
	e := got[0]
	if asJSON {
		return printJSON(a.Stdout, struct {
			ID  int64 `json:"id"`
			New bool  `json:"new"`
		}{e.ID, e.New})
	}
	if !e.New {
		fmt.Fprintf(a.Stdout, "job %d has this key already, nothing was put in\n", e.ID)
		return nil
	}
	fmt.Fprintf(a.Stdout, "job %d\n", e.ID)
	return nil
}

// uncertain says what is known after a failed write.
func uncertain(err error, what string) error {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w; it is not known whether %s got in: with a key it is safe to repeat", err, what)
	}
	return err
}

// line is one job of a file.
type line struct {
	Kind        string          `json:"kind"`
	Payload     json.RawMessage `json:"payload"`
	Queue       string          `json:"queue"`
	Key         string          `json:"key"`
	Delay       string          `json:"delay"`
	At          string          `json:"at"`
	ExpiresAt   string          `json:"expires_at"`
	Priority    *int            `json:"priority"`
	MaxAttempts *int            `json:"max_attempts"`
	Timeout     string          `json:"timeout"`
}

func parseLine(text []byte, base job.New) (job.New, error) {
	n := base
	var l line
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var wrong *json.UnmarshalTypeError
	switch err := dec.Decode(&l); {
	case errors.As(err, &wrong) && wrong.Field != "":
		return n, fmt.Errorf("%s: must not be a JSON %s", wrong.Field, wrong.Value)
	case errors.As(err, &wrong):
		return n, fmt.Errorf("must be a JSON object with the keys of a job (got a JSON %s)", wrong.Value)
	case err != nil:
		return n, fmt.Errorf("must be a JSON object with the keys of a job (%s)", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return n, errors.New("has more than one JSON object")
	}
	set(&n.Kind, l.Kind)
	set(&n.Queue, l.Queue)
	set(&n.Key, l.Key)
	n.Payload = l.Payload
	if l.Priority != nil {
		n.Priority = *l.Priority
	}
	if l.MaxAttempts != nil {
		n.MaxAttempts = *l.MaxAttempts
	}
	if l.Delay != "" || l.At != "" { // one replaces the other's default
		n.Delay, n.At = 0, time.Time{}
	}
	return n, errors.Join(
		parseTime("at", l.At, &n.At), parseTime("expires_at", l.ExpiresAt, &n.ExpiresAt),
		parseDuration("delay", l.Delay, &n.Delay), parseDuration("timeout", l.Timeout, &n.Timeout))
}

func set(into *string, v string) {
	if v != "" {
		*into = v
	}
}

// tally is what became of the lines of a file.
type tally struct {
	New     int `json:"new"`
	Known   int `json:"known"` // keys that were there already
	Refused int `json:"refused"`
}

func (t tally) String() string {
	return fmt.Sprintf("%d new, %d known already, %d refused", t.New, t.Known, t.Refused)
}

// importer puts the lines of a file in.
type importer struct {
	a     *app
	s     *opened
	limit int
	jobs  []job.New
	lines []int // of jobs
	tally
	progress progress
}

func (a *app) enqueueFile(ctx context.Context, s *opened, base job.New, file string, asJSON bool) (err error) {
	in := a.Stdin
	if file != "-" {
		f, err := os.Open(a.path(file))
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	im := &importer{a: a, s: s, progress: progress{w: a.Stderr, on: isTerminal(a.Stderr)}}
	if im.limit, err = payloadLimit(ctx, s); err != nil {
		return err
	}
	err = im.read(ctx, bufio.NewReaderSize(in, 64<<10), base)
	im.progress.end()
	if asJSON {
		err = errors.Join(err, printJSON(a.Stdout, im.tally))
	} else {
		fmt.Fprintln(a.Stdout, im.tally)
	}
	if err == nil && im.Refused > 0 {
		err = partError{}
	}
	return err
}

func (im *importer) read(ctx context.Context, in *bufio.Reader, base job.New) error {
	for number := 1; ; number++ {
		text, long, err := readLine(in, im.limit+lineRoom)
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(im.flush(ctx), fmt.Errorf("read line %d: %w", number, err))
		}
		switch trimmed := bytes.TrimSpace(text); {
		case long:
			im.refuse(number, fmt.Errorf("is longer than %d bytes", im.limit+lineRoom))
		case len(trimmed) > 0:
			n, lineErr := parseLine(trimmed, base)
			if lineErr == nil {
				lineErr = n.Validate(im.limit)
			}
			if lineErr != nil {
				im.refuse(number, lineErr)
				break
			}
			im.jobs, im.lines = append(im.jobs, n), append(im.lines, number)
		}
		if len(im.jobs) == enqueueBatch || err != nil {
			if flushErr := im.flush(ctx); flushErr != nil {
				return flushErr
			}
		}
		if err != nil {
			return nil
		}
		if ctx.Err() != nil {
			return im.interrupted(ctx)
		}
	}
}

// interrupted says which lines were read and are surely not in.
func (im *importer) interrupted(ctx context.Context) error {
	if len(im.lines) == 0 {
		return ctx.Err()
	}
	return fmt.Errorf("%w; all before line %d is done, the rest is not in", ctx.Err(), im.lines[0])
}

func (im *importer) refuse(number int, err error) {
	im.Refused++
	im.progress.end()
	im.a.complain("line %d: %s", number, flat(err))
}

// flat is an error that may be several, on one line.
func flat(err error) string {
	return string(bytes.ReplaceAll([]byte(err.Error()), []byte("\n"), []byte("; ")))
}

// flush puts in what was read. A batch in which the database refuses a value goes
// in one by one, so that only that line is left out.
func (im *importer) flush(ctx context.Context) error {
	if len(im.jobs) == 0 {
		return nil
	}
	defer func() { im.jobs, im.lines = im.jobs[:0], im.lines[:0] }()
	got, err := im.s.Enqueue(ctx, im.jobs)
	switch {
	case err == nil:
		im.count(got)
	case errors.Is(err, store.ErrData):
		for i := range im.jobs {
			got, err := im.s.Enqueue(ctx, im.jobs[i:i+1])
			switch {
			case err == nil:
				im.count(got)
			case errors.Is(err, store.ErrData):
				im.refuse(im.lines[i], err)
			default:
				return im.stopped(err, i, i)
			}
		}
	default:
		return im.stopped(err, 0, len(im.lines)-1)
	}
	im.progress.show("%s", im.tally)
	return nil
}

// stopped says where an import ended.
func (im *importer) stopped(err error, first, last int) error {
	where := fmt.Sprintf("line %d", im.lines[first])
	if last > first {
		where = fmt.Sprintf("lines %d to %d", im.lines[first], im.lines[last])
	}
	return fmt.Errorf("all before line %d is done; %w", im.lines[first], uncertain(err, where))
}

func (im *importer) count(got []store.Enqueued) {
	for _, e := range got {
		if e.New {
			im.New++
		} else {
			im.Known++
		}
	}
}

// readLine reads a line of up to limit bytes; of a longer one, which it reads to
// its end, it keeps nothing. At the end of the file err is io.EOF.
func readLine(in *bufio.Reader, limit int) (text []byte, long bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if !long {
			text = append(text, part...)
		}
		if len(text) > limit {
			text, long = nil, true
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, long, err
		}
	}
}

// progress shows on one line of a terminal how far a command is.
type progress struct {
	w     io.Writer
	on    bool
	shown bool
	last  time.Time
}

func (p *progress) show(format string, args ...any) {
	if !p.on || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.shown, p.last = true, time.Now()
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
}

// end clears the line.
func (p *progress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
