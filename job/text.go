package job

import (
	"strings"
	"unicode/utf8"
)

// Limits on text that is kept with a job, in bytes.
const (
	ErrorLimit  = 8 << 10
	ResultLimit = 8 << 10
)

const cutMark = "… (cut)"

// Clean makes s fit for a text column of every store: valid UTF-8, no NUL, at
// most limit bytes, cut at a character boundary and marked as cut.
func Clean(s string, limit int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	}
	if len(s) <= limit {
		return s
	}
	n := max(limit-len(cutMark), 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cutMark
}

// CleanTail is Clean, but keeps the end of s, where programs say why they failed.
func CleanTail(s string, limit int) string {
	s = Clean(s, len(s)*3)
	if len(s) <= limit {
		return s
	}
	n := len(s) - max(limit-len(cutMark), 0)
	for n < len(s) && !utf8.RuneStart(s[n]) {
		n++
	}
	return cutMark + s[n:]
}
