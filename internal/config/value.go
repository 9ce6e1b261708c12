package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads "90s", "1h30m" or "30d"; days have 24 hours. A number
// without a unit is refused, but for 0.
func ParseDuration(text string) (time.Duration, error) {
	if text == "0" {
		return 0, nil
	}
	rest, sign := text, 1.0
	if s, ok := strings.CutPrefix(rest, "-"); ok {
		rest, sign = s, -1
	}
	var days float64
	if m := daysRule.FindStringSubmatch(rest); m != nil {
		days, _ = strconv.ParseFloat(m[1], 64) // digits by the rule
		rest = rest[len(m[0]):]
	}
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil || rest[0] == '-' || rest[0] == '+' {
			if numberRule.MatchString(text) {
				return 0, fmt.Errorf("needs a unit, for instance %ss", strings.TrimLeft(text, "+"))
			}
			return 0, errDuration
		}
	} else if days == 0 && !daysRule.MatchString(text) {
		return 0, errDuration
	}
	total := sign * (days*24*float64(time.Hour) + float64(d))
	if math.Abs(total) > float64(maxDuration) {
		return 0, fmt.Errorf("must not be longer than %s", FormatDuration(maxDuration))
	}
	return time.Duration(sign) * (time.Duration(days*24*float64(time.Hour)) + d), nil
}

// maxDuration is far from where a time.Duration overflows.
const maxDuration = 100 * 365 * 24 * time.Hour

var (
	daysRule    = regexp.MustCompile(`^(\d+(?:\.\d+)?)d`)
	numberRule  = regexp.MustCompile(`^[-+]?\d+(?:\.\d+)?$`)
	sizeRule    = regexp.MustCompile(`^(\d+)\s*([A-Za-z]*)$`)
	errDuration = fmt.Errorf("must be a time with its unit, for instance 500ms, 30s, 10m, 12h or 30d")
)

// FormatDuration writes d as ParseDuration reads it, without parts that are 0.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	if d == 0 {
		return "0"
	}
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

var sizeUnits = []struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}}

func parseSize(text string) (int64, error) {
	m := sizeRule.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("must be a size with its unit, for instance 512KiB or 1MiB")
	}
	if m[2] == "" {
		return 0, fmt.Errorf("needs a unit, for instance %sB or 1MiB", m[1])
	}
	for _, u := range sizeUnits {
		if u.name != m[2] {
			continue
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || n > math.MaxInt64/u.size {
			return 0, fmt.Errorf("is too large")
		}
		return n * u.size, nil
	}
	return 0, fmt.Errorf("must have one of the units B, KiB, MiB, GiB, kB, MB and GB")
}

func formatSize(n int64) string {
	for _, u := range sizeUnits[:3] {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// setValue parses raw, as YAML or a variable gives it, into ptr and returns the
// rule that it breaks, or "".
func setValue(ptr, raw any) string {
	switch p := ptr.(type) {
	case *string:
		s, ok := raw.(string)
		if !ok {
			return "must be text; put it in quotes"
		}
		*p = s
	case *Secret:
		s, ok := raw.(string)
		if !ok {
			return "must be text; put it in quotes"
		}
		*p = Secret(s)
	case *int:
		n, err := strconv.Atoi(text(raw))
		if err != nil {
			return "must be a whole number"
		}
		*p = n
	case *float64:
		f, err := strconv.ParseFloat(text(raw), 64)
		if err != nil || math.IsNaN(f) {
			return "must be a number"
		}
		*p = f
	case *time.Duration:
		d, err := ParseDuration(text(raw))
		if err != nil {
			return err.Error()
		}
		*p = d
	case *Size:
		n, err := parseSize(text(raw))
		if err != nil {
			return err.Error()
		}
		*p = Size(n)
	case *[]string:
		return setList(p, raw)
	case *[]int:
		return setList(p, raw)
	case *[]time.Duration:
		return setList(p, raw)
	default:
		panic(fmt.Sprintf("option of type %T", ptr)) // the table is wrong, which every test would show
	}
	return ""
}

func setList[T any](p *[]T, raw any) string {
	list, ok := raw.([]any)
	if !ok {
		return "must be a list"
	}
	values := make([]T, len(list))
	for i, r := range list {
		if rule := setValue(&values[i], r); rule != "" {
			return fmt.Sprintf("entry %d %s", i+1, rule)
		}
	}
	*p = values
	return ""
}

// text is a scalar as it was written, near enough; "" for what is none.
func text(raw any) string {
	switch v := raw.(type) {
	case string:
		return strings.TrimSpace(v)
	case int, int64, uint64:
		return fmt.Sprint(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return ""
}

// format writes the value behind ptr as the file has it.
func format(ptr any) string {
	switch p := ptr.(type) {
	case *string:
		return *p
	case *Secret:
		return p.String()
	case *int:
		return strconv.Itoa(*p)
	case *float64:
		return strconv.FormatFloat(*p, 'f', -1, 64)
	case *time.Duration:
		return FormatDuration(*p)
	case *Size:
		return p.String()
	case *[]string:
		quoted := make([]string, len(*p))
		for i, s := range *p {
			quoted[i] = strconv.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case *[]int:
		return list(*p, func(n *int) string { return format(n) })
	case *[]time.Duration:
		return list(*p, func(d *time.Duration) string { return format(d) })
	}
	panic(fmt.Sprintf("option of type %T", ptr))
}

func list[T any](values []T, one func(*T) string) string {
	texts := make([]string, len(values))
	for i := range values {
		texts[i] = one(&values[i])
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// shown is a value for a message, cut.
func shown(raw any) string {
	var s string
	switch v := raw.(type) {
	case string:
		s = strconv.Quote(v)
	case nil:
		return ""
	case map[string]any:
		return "a section"
	case []any:
		return "a list"
	default:
		s = fmt.Sprint(v)
	}
	if r := []rune(s); len(r) > 60 {
		s = string(r[:59]) + "…"
	}
	return s
}

// nearest is the candidate that name was most likely meant to be, "" for none.
func nearest(name string, candidates []string) string {
	best, bestAt := "", 1+min(3, len(name)/2)
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(name, c); d < bestAt {
			best, bestAt = c, d
		}
	}
	return best
}

// distance is how many letters must be changed, added, taken out or swapped with
// their neighbour to make b of a.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
