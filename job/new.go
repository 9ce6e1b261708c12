package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// New is a job to be enqueued. Only Kind must be set.
type New struct {
	Kind        string
	Queue       string          // "" is DefaultQueue
	Key         string          // idempotency key, "" for none
	Payload     json.RawMessage // nil is EmptyPayload
	Priority    int             // MinPriority to MaxPriority, higher first
	MaxAttempts int             // 0 asks for the kind's policy
	Timeout     time.Duration   // 0 asks for the kind's policy; whole milliseconds
	Delay       time.Duration   // due this long after the enqueue, by the store's clock
	At          time.Time       // due at this time; not together with Delay
	ExpiresAt   time.Time       // not run any more after this time; zero: never
}

// What a TIMESTAMP column of every server can hold in every session time zone. A
// server that isn't strict would turn a time beyond it into now or never.
var (
	minTime = time.Date(1970, 1, 3, 0, 0, 0, 0, time.UTC)
	maxTime = time.Date(2038, 1, 17, 0, 0, 0, 0, time.UTC)
)

// FieldError names a field, the value it has and the rule it breaks.
type FieldError struct {
	Field string
	Value any
	Rule  string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s (got %v)", e.Field, e.Rule, e.Value) }

// Validate reports every rule that n breaks, as FieldErrors joined, or nil.
// maxPayload is in bytes; 0 stands for MaxPayloadBytes.
func (n *New) Validate(maxPayload int) error {
	if maxPayload == 0 {
		maxPayload = MaxPayloadBytes
	}
	var errs []error
	bad := func(field string, value any, rule string, args ...any) {
		errs = append(errs, &FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)})
	}
	if n.Kind == "" {
		bad("kind", `""`, "must not be empty")
	} else if msg := badName(n.Kind, MaxNameBytes); msg != "" {
		bad("kind", quote(n.Kind), "%s", msg)
	}
	if msg := badName(n.Queue, MaxNameBytes); msg != "" {
		bad("queue", quote(n.Queue), "%s", msg)
	}
	if msg := badName(n.Key, MaxKeyBytes); msg != "" {
		bad("key", quote(n.Key), "%s", msg)
	}
	if len(n.Payload) > maxPayload {
		bad("payload", fmt.Sprintf("%d bytes", len(n.Payload)), "must be at most %d bytes", maxPayload)
	} else if n.Payload != nil && !(json.Valid(n.Payload) && utf8.Valid(n.Payload)) {
		bad("payload", quote(Clean(string(n.Payload), 40)), "must be JSON")
	}
	if n.Priority < MinPriority || n.Priority > MaxPriority {
		bad("priority", n.Priority, "must be between %d and %d", MinPriority, MaxPriority)
	}
	if n.MaxAttempts < 0 || n.MaxAttempts > MaxMaxAttempts {
		bad("max_attempts", n.MaxAttempts, "must be between 1 and %d, or 0 for the kind's own", MaxMaxAttempts)
	}
	if n.Timeout != 0 && (n.Timeout < time.Millisecond || n.Timeout > MaxTimeout) {
		bad("timeout", n.Timeout, "must be between 1ms and %s, or 0 for the kind's own", MaxTimeout)
	}
	if n.Delay < 0 || n.Delay > MaxDelay {
		bad("delay", n.Delay, "must be between 0 and %s", MaxDelay)
	}
	for _, f := range []struct {
		name string
		t    time.Time
	}{{"at", n.At}, {"expires_at", n.ExpiresAt}} {
		if !f.t.IsZero() && (f.t.Before(minTime) || f.t.After(maxTime)) {
			bad(f.name, f.t.Format(time.RFC3339), "must be between %s and %s", minTime.Format(time.DateOnly), maxTime.Format(time.DateOnly))
		}
	}
	if n.Delay != 0 && !n.At.IsZero() {
		bad("at", n.At.Format(time.RFC3339), "must not be given together with delay")
	}
	return errors.Join(errs...)
}

func badName(s string, limit int) string {
	switch {
	case len(s) > limit:
		return fmt.Sprintf("must be at most %d bytes", limit)
	case !utf8.ValidString(s):
		return "must be valid UTF-8"
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return "must not have control characters"
		}
	}
	if s != "" && s[len(s)-1] == ' ' {
		return "must not end in a space" // servers without a NO PAD collation don't see it
	}
	return ""
}

func quote(s string) string { return fmt.Sprintf("%q", s) }
