package job

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"
)

// Check says why a claimed row can't be run as a producer wrote it, or "". The
// numbers are the row's own columns, 0 for NULL, where j holds only values in
// range. maxPayload is in bytes; 0 stands for MaxPayloadBytes.
//
// What a server refuses by itself (a JSON column, a NOT NULL) is checked all the
// same: not every server does.
func Check(j *Job, maxAttempts, timeoutMS int64, maxPayload int) string {
	if maxPayload == 0 {
		maxPayload = MaxPayloadBytes
	}
	switch {
	case j.Kind == "":
		return "kind: must not be empty"
	case len(j.Payload) > maxPayload:
		return fmt.Sprintf("payload: must be at most %d bytes (got %d)", maxPayload, len(j.Payload))
	case !utf8.Valid(j.Payload) || !json.Valid(j.Payload):
		return fmt.Sprintf("payload: must be JSON (got %q)", Clean(string(j.Payload), 80))
	case j.Priority < MinPriority || j.Priority > MaxPriority:
		return fmt.Sprintf("priority: must be between %d and %d (got %d)", MinPriority, MaxPriority, j.Priority)
	case maxAttempts < 0 || maxAttempts > MaxMaxAttempts:
		return fmt.Sprintf("max_attempts: must be between 1 and %d, or 0 for the kind's own (got %d)", MaxMaxAttempts, maxAttempts)
	case timeoutMS < 0 || timeoutMS > MaxTimeout.Milliseconds():
		return fmt.Sprintf("timeout_ms: must be between 1 and %d, or 0 for the kind's own (got %d)", MaxTimeout.Milliseconds(), timeoutMS)
	case j.Attempt < 1 || j.Attempt >= math.MaxInt32:
		return fmt.Sprintf("attempts: has been set to an impossible value (%d after this claim)", j.Attempt)
	}
	return ""
}
