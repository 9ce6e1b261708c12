package store

import (
	"fmt"
	"strconv"
	"strings"
)

// EncodeIDs writes ids, which must be positive and ascending, as ranges:
// "17-20,25". A batch claimed in one piece takes a few bytes, whatever its size.
func EncodeIDs(ids []int64) string {
	var b []byte
	for lo := 0; lo < len(ids); {
		hi := lo
		for hi+1 < len(ids) && ids[hi+1] == ids[hi]+1 {
			hi++
		}
		if lo > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, ids[lo], 10)
		if hi > lo {
			b = append(b, '-')
			b = strconv.AppendInt(b, ids[hi], 10)
		}
		lo = hi + 1
	}
	return string(b)
}

// maxDecoded bounds what a set that was written by hand can make of memory.
const maxDecoded = 1_000_000

// DecodeIDs reads what EncodeIDs wrote. "" is no ids.
func DecodeIDs(text string) ([]int64, error) {
	if text == "" {
		return nil, nil
	}
	var ids []int64
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.ParseInt(first, 10, 64)
		hi, err2 := strconv.ParseInt(last, 10, 64)
		if err1 != nil || err2 != nil || lo < 1 || hi < lo {
			return nil, fmt.Errorf("id set has %q where an id or a range is expected", part)
		}
		if len(ids) > 0 && lo <= ids[len(ids)-1] {
			return nil, fmt.Errorf("id set is not ascending at %q", part)
		}
		if hi-lo >= maxDecoded-int64(len(ids)) {
			return nil, fmt.Errorf("id set has more than %d ids", maxDecoded)
		}
		for id := lo; ; id++ { // not id <= hi, which never ends at the largest number
			ids = append(ids, id)
			if id == hi {
				break
			}
		}
	}
	return ids, nil
}
