package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxAttempt is the highest attempt number that a job can reach in earnest:
// MaxMaxAttempts with room for runs that were cut off and for dead letters that
// could not be written.
const maxAttempt = 1000 * MaxMaxAttempts

// Check says why the claimed row j can't be run as it is stored, for Job.Bad, or
// "" when it can. It is the rule of what a plain INSERT may have written, one for
// all stores. j needs Kind, Key, Payload, Priority and Attempt as the claim left
// them; the raw limits are the columns max_attempts and timeout_ms, 0 for NULL.
// maxPayload is in bytes; 0 stands for MaxPayloadBytes.
func Check(j *Job, maxAttemptsRaw, timeoutMSRaw int64, maxPayload int) string {
	if maxPayload == 0 {
		maxPayload = MaxPayloadBytes
	}
	var list []string
	bad := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if j.Kind == "" {
		bad("kind must not be empty")
	} else if msg := badName(j.Kind, MaxNameBytes); msg != "" {
		bad("kind %s", msg)
	}
	// A key is never looked up by its text from elsewhere, so unlike a kind it may
	// end in a space.
	if len(j.Key) > MaxKeyBytes {
		bad("idempotency_key must be at most %d bytes (got %d)", MaxKeyBytes, len(j.Key))
	} else if msg := badName(strings.TrimRight(j.Key, " "), MaxKeyBytes); msg != "" {
		bad("idempotency_key %s", msg)
	}
	if len(j.Payload) > maxPayload {
		bad("payload must be at most %d bytes (got %d)", maxPayload, len(j.Payload))
	} else if !json.Valid(j.Payload) || !utf8.Valid(j.Payload) {
		bad("payload must be JSON")
	}
	if j.Priority < MinPriority || j.Priority > MaxPriority {
		bad("priority must be between %d and %d (got %d)", MinPriority, MaxPriority, j.Priority)
	}
	if maxAttemptsRaw < 0 || maxAttemptsRaw > MaxMaxAttempts {
		bad("max_attempts must be between 1 and %d, or NULL for the kind's own (got %d)", MaxMaxAttempts, maxAttemptsRaw)
	}
	if timeoutMSRaw < 0 || timeoutMSRaw > MaxTimeout.Milliseconds() {
		bad("timeout_ms must be between 1 and %d, or NULL for the kind's own (got %d)", MaxTimeout.Milliseconds(), timeoutMSRaw)
	}
	if j.Attempt < 1 || j.Attempt > maxAttempt {
		bad("attempts must be between 0 and %d before a run (got %d)", maxAttempt-1, j.Attempt-1)
	}
	return strings.Join(list, "; ")
}

// Limits turns the columns max_attempts and timeout_ms, 0 for NULL, into what a
// Job holds. Impossible values, which Check reports, count as not given.
func Limits(maxAttemptsRaw, timeoutMSRaw int64) (maxAttempts int, timeout time.Duration) {
	if maxAttemptsRaw > 0 && maxAttemptsRaw <= MaxMaxAttempts {
		maxAttempts = int(maxAttemptsRaw)
	}
	if timeoutMSRaw > 0 && timeoutMSRaw <= MaxTimeout.Milliseconds() {
		timeout = time.Duration(timeoutMSRaw) * time.Millisecond
	}
	return maxAttempts, timeout
}
