package job

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"
)

// validRow is a row that can be run; each case breaks one field.
func validRow() *Job {
	return &Job{ID: 1, Queue: "default", Kind: "mail", Key: "k", Payload: []byte(`{"a":1}`), Priority: 0, Attempt: 1}
}

func TestCheck_NamesTheColumnAndTheRuleOfEachBadField(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                string
		change              func(*Job)
		maxAttempts, timeMS int64
		want                string // start of the text, "" for a good row
	}{
		{name: "good row"},
		{name: "kind empty", change: func(j *Job) { j.Kind = "" }, want: "kind must not be empty"},
		{name: "kind at limit", change: func(j *Job) { j.Kind = strings.Repeat("k", MaxNameBytes) }},
		{name: "kind over limit", change: func(j *Job) { j.Kind = strings.Repeat("k", MaxNameBytes+1) }, want: "kind must be at most 64 bytes"},
		{name: "kind ends in space", change: func(j *Job) { j.Kind = "mail " }, want: "kind must not end in a space"},
		{name: "kind not UTF-8", change: func(j *Job) { j.Kind = "\xff" }, want: "kind must be valid UTF-8"},
		{name: "kind with NUL", change: func(j *Job) { j.Kind = "a\x00b" }, want: "kind must not have control characters"},
		{name: "key none", change: func(j *Job) { j.Key = "" }},
		{name: "key at limit", change: func(j *Job) { j.Key = strings.Repeat("k", MaxKeyBytes) }},
		{name: "key over limit", change: func(j *Job) { j.Key = strings.Repeat("k", MaxKeyBytes+1) }, want: "idempotency_key must be at most 191 bytes (got 192)"},
		{name: "key over limit by spaces", change: func(j *Job) { j.Key = "k" + strings.Repeat(" ", MaxKeyBytes) }, want: "idempotency_key must be at most"},
		{name: "key ends in space", change: func(j *Job) { j.Key = "k " }},
		{name: "key with newline", change: func(j *Job) { j.Key = "a\nb" }, want: "idempotency_key must not have control characters"},
		{name: "payload empty", change: func(j *Job) { j.Payload = nil }, want: "payload must be JSON"},
		{name: "payload cut", change: func(j *Job) { j.Payload = []byte("{") }, want: "payload must be JSON"},
		{name: "payload two values", change: func(j *Job) { j.Payload = []byte("{} {}") }, want: "payload must be JSON"},
		{name: "payload not UTF-8", change: func(j *Job) { j.Payload = []byte("\"\xff\"") }, want: "payload must be JSON"},
		{name: "payload nested too deep", change: func(j *Job) { j.Payload = bytes.Repeat([]byte("["), 1<<20) }, want: "payload must be JSON"},
		{name: "payload a bare value", change: func(j *Job) { j.Payload = []byte("null") }},
		{name: "payload at limit", change: func(j *Job) { j.Payload = jsonOf(MaxPayloadBytes) }},
		{name: "payload over limit", change: func(j *Job) { j.Payload = jsonOf(MaxPayloadBytes + 1) }, want: "payload must be at most 1048576 bytes (got 1048577)"},
		{name: "priority lowest", change: func(j *Job) { j.Priority = MinPriority }},
		{name: "priority highest", change: func(j *Job) { j.Priority = MaxPriority }},
		{name: "priority below", change: func(j *Job) { j.Priority = -1 }, want: "priority must be between 0 and 9 (got -1)"},
		{name: "priority above", change: func(j *Job) { j.Priority = 10 }, want: "priority must be between 0 and 9 (got 10)"},
		{name: "max_attempts one", maxAttempts: 1},
		{name: "max_attempts highest", maxAttempts: MaxMaxAttempts},
		{name: "max_attempts negative", maxAttempts: -1, want: "max_attempts must be between 1 and 1000"},
		{name: "max_attempts above", maxAttempts: MaxMaxAttempts + 1, want: "max_attempts must be between 1 and 1000"},
		{name: "timeout one", timeMS: 1},
		{name: "timeout highest", timeMS: MaxTimeout.Milliseconds()},
		{name: "timeout negative", timeMS: -1, want: "timeout_ms must be between 1 and 604800000"},
		{name: "timeout above", timeMS: MaxTimeout.Milliseconds() + 1, want: "timeout_ms must be between"},
		{name: "timeout overflows a duration", timeMS: math.MaxInt64, want: "timeout_ms must be between"},
		{name: "attempts negative", change: func(j *Job) { j.Attempt = 0 }, want: "attempts must be between 0 and 999999 before a run (got -1)"},
		{name: "attempts highest", change: func(j *Job) { j.Attempt = 1_000_000 }},
		{name: "attempts above", change: func(j *Job) { j.Attempt = 1_000_001 }, want: "attempts must be"},
		{name: "attempts at the column's end", change: func(j *Job) { j.Attempt = math.MaxInt32 }, want: "attempts must be"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j := validRow()
			if tt.change != nil {
				tt.change(j)
			}
			got := Check(j, tt.maxAttempts, tt.timeMS, 0)
			if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
				t.Errorf("Check: got %q, want %q…", got, tt.want)
			}
		})
	}
}

func jsonOf(size int) []byte { return []byte(`"` + strings.Repeat("x", size-2) + `"`) }

func TestCheck_PayloadLimitIsTheConfiguredOne(t *testing.T) {
	t.Parallel()
	j := validRow()
	j.Payload = jsonOf(11)
	if got := Check(j, 0, 0, 10); got != "payload must be at most 10 bytes (got 11)" {
		t.Errorf("over a limit of 10: got %q", got)
	}
	if got := Check(j, 0, 0, 11); got != "" {
		t.Errorf("at a limit of 11: got %q, want \"\"", got)
	}
}

func TestCheck_ReportsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	j := validRow()
	j.Kind, j.Priority = "", 12
	want := "kind must not be empty; priority must be between 0 and 9 (got 12)"
	if got := Check(j, 0, 0, 0); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheck_TextFitsTheErrorColumn(t *testing.T) {
	t.Parallel()
	j := &Job{Kind: strings.Repeat("\xff", 100), Key: strings.Repeat("\n", 1000), Payload: []byte("{"), Priority: math.MaxInt, Attempt: math.MinInt32}
	if got := Check(j, math.MinInt64, math.MaxInt64, 0); got != Clean(got, ErrorLimit) {
		t.Errorf("text is changed by Clean: %q", got)
	}
}

func TestLimits_ImpossibleValuesCountAsNotGiven(t *testing.T) {
	t.Parallel()
	tests := []struct {
		attempts, ms int64
		wantAttempts int
		wantTimeout  time.Duration
	}{
		{0, 0, 0, 0},
		{1, 1, 1, time.Millisecond},
		{MaxMaxAttempts, MaxTimeout.Milliseconds(), MaxMaxAttempts, MaxTimeout},
		{MaxMaxAttempts + 1, MaxTimeout.Milliseconds() + 1, 0, 0},
		{-1, -1, 0, 0},
		{math.MaxInt64, math.MaxInt64, 0, 0},
		{math.MinInt64, math.MinInt64, 0, 0},
	}
	for _, tt := range tests {
		if a, d := Limits(tt.attempts, tt.ms); a != tt.wantAttempts || d != tt.wantTimeout {
			t.Errorf("Limits(%d, %d): got %d, %s, want %d, %s", tt.attempts, tt.ms, a, d, tt.wantAttempts, tt.wantTimeout)
		}
	}
}
