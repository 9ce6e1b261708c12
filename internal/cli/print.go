package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"queued/internal/config"
)

// printJSON writes v, indented. Text of jobs stands in it as it is: JSON escapes
// what could steer a terminal.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// list is never null in JSON.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// table writes aligned rows under a header.
func table(w io.Writer, header string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(strings.Fields(header), "\t"))
	for _, r := range rows {
		for i := range r {
			if r[i] = plain(r[i]); r[i] == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// plain is text of a job on one line of a terminal: anything that could steer it
// is shown as an escape.
func plain(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// block is text of several lines, indented and safe like plain.
func block(s string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		b.WriteString("  " + plain(strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", "    ")) + "\n")
	}
	return b.String()
}

// short cuts s to n characters.
func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func itoa[N int | int64](n N) string { return strconv.FormatInt(int64(n), 10) }

// utc writes a time in UTC, "" for none.
func utc(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func utcPtr(t *time.Time) string {
	if t == nil {
		return ""
	}
	return utc(*t)
}

// age writes a duration in its two largest units.
func age(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Hour:
		return config.FormatDuration(d.Round(time.Second))
	case d < 48*time.Hour:
		return config.FormatDuration(d.Round(time.Minute))
	}
	return config.FormatDuration(d.Round(24 * time.Hour))
}

// letters is "1 dead letter", "2 dead letters".
func letters(n int) string {
	if n == 1 {
		return "1 dead letter"
	}
	return itoa(n) + " dead letters"
}
