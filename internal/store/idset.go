package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxIDs is the most ids a set may hold: a claim of every queue a daemon could
// serve. It bounds what a row edited by hand can make DecodeIDs allocate.
const maxIDs = 1 << 20

// EncodeIDs writes a set of ids as ascending ranges, "17-20,25", the form of
// leases.job_ids. The ids may come in any order and more than once.
func EncodeIDs(ids []int64) string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var b []byte
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, ids[i], 10)
		if last > i {
			b = append(b, '-')
			b = strconv.AppendInt(b, ids[last], 10)
		}
		i = last + 1
	}
	return string(b)
}

// DecodeIDs reads what EncodeIDs wrote: the ids in ascending order, none for "".
// Anything else is an error: ids below 1, ranges that touch, overlap or go down,
// and sets of more than a million ids.
func DecodeIDs(s string) ([]int64, error) {
	if s == "" {
		return nil, nil
	}
	var ids []int64
	prev := int64(-1) // the last id; one right behind it would be in its range
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		first, err := parseID(lo)
		if err != nil {
			return nil, fmt.Errorf("id set: %w", err)
		}
		last := first
		if isRange {
			if last, err = parseID(hi); err != nil {
				return nil, fmt.Errorf("id set: %w", err)
			}
		}
		switch {
		case first-prev < 2, last < first, isRange && last == first:
			return nil, fmt.Errorf("id set: %q is out of order", part)
		case last-first >= maxIDs-int64(len(ids)):
			return nil, fmt.Errorf("id set: more than %d ids", maxIDs)
		}
		for id := range last - first + 1 {
			ids = append(ids, first+id)
		}
		prev = last
	}
	return ids, nil
}

// parseID takes digits only, as EncodeIDs writes them: no sign, no leading zero.
func parseID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 || s[0] < '1' || s[0] > '9' {
		return 0, fmt.Errorf("%q is no id", s)
	}
	return id, nil
}
