package store_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"queued/internal/store"
)

func TestEncodeIDs_WritesAscendingRanges(t *testing.T) {
	t.Parallel()
	tests := []struct {
		ids  []int64
		want string
	}{
		{nil, ""},
		{[]int64{7}, "7"},
		{[]int64{7, 8}, "7-8"},
		{[]int64{17, 18, 19, 20, 25}, "17-20,25"},
		{[]int64{25, 18, 17, 20, 19, 18}, "17-20,25"},
		{[]int64{1, 3, 5}, "1,3,5"},
		{[]int64{math.MaxInt64 - 1, math.MaxInt64}, "9223372036854775806-9223372036854775807"},
	}
	for _, tt := range tests {
		if got := store.EncodeIDs(tt.ids); got != tt.want {
			t.Errorf("EncodeIDs(%v): got %q, want %q", tt.ids, got, tt.want)
		}
	}
}

func TestEncodeIDs_LeavesItsArgumentAlone(t *testing.T) {
	t.Parallel()
	ids := []int64{3, 1, 2}
	store.EncodeIDs(ids)
	if want := []int64{3, 1, 2}; !slices.Equal(ids, want) {
		t.Errorf("argument: got %v, want %v", ids, want)
	}
}

func TestDecodeIDs_ReadsWhatEncodeIDsWrote(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]int64{nil, {7}, {7, 8}, {17, 18, 19, 20, 25}, {math.MaxInt64 - 1, math.MaxInt64}, {1, math.MaxInt64}} {
		got, err := store.DecodeIDs(store.EncodeIDs(ids))
		if err != nil {
			t.Errorf("DecodeIDs of %v: %v", ids, err)
		}
		if diff := cmp.Diff(ids, got); diff != "" {
			t.Errorf("DecodeIDs of %v (-want +got):\n%s", ids, diff)
		}
	}
}

func TestDecodeIDs_RefusesEverythingElse(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"0", "-1", "+1", "01", "1.5", "a", " ", "1 ", ",", "1,", ",1", "1,,2", "1-", "-", "1-2-3",
		"2-1", "1-1", "2,1", "1,1", "1,2", "1-3,3", "1-3,4", "1-9223372036854775807", "9223372036854775808",
		"9223372036854775807,9223372036854775807", "1-1048577", "1-1048576,2000000",
	} {
		if got, err := store.DecodeIDs(s); err == nil {
			t.Errorf("DecodeIDs(%q): got %d ids, want an error", s, len(got))
		}
	}
	if got, err := store.DecodeIDs("1-1048576"); err != nil || len(got) != 1<<20 {
		t.Errorf("DecodeIDs of the largest set: got %d ids, %v", len(got), err)
	}
}

func FuzzDecodeIDs(f *testing.F) {
	for _, s := range []string{"", "1", "17-20,25", "1-1", "9223372036854775806-9223372036854775807", "1-9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := store.DecodeIDs(s)
		if err != nil {
			return
		}
		if got := store.EncodeIDs(ids); got != s {
			t.Errorf("EncodeIDs(DecodeIDs(%q)): got %q", s, got)
		}
	})
}
