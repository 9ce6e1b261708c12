package store

import (
	"math"
	"slices"
	"testing"
)

func TestEncodeIDs_WritesRangesAndDecodeReadsThem(t *testing.T) {
	for _, tc := range []struct {
		ids  []int64
		text string
	}{
		{nil, ""},
		{[]int64{7}, "7"},
		{[]int64{17, 18, 19, 20, 25}, "17-20,25"},
		{[]int64{1, 3, 4}, "1,3-4"},
		{[]int64{math.MaxInt64 - 1, math.MaxInt64}, "9223372036854775806-9223372036854775807"},
	} {
		if got := EncodeIDs(tc.ids); got != tc.text {
			t.Errorf("EncodeIDs(%v): got %q, want %q", tc.ids, got, tc.text)
		}
		if got, err := DecodeIDs(tc.text); err != nil || !slices.Equal(got, tc.ids) {
			t.Errorf("DecodeIDs(%q): got %v, %v, want %v", tc.text, got, err, tc.ids)
		}
	}
}

func TestDecodeIDs_RefusesWhatEncodeNeverWrites(t *testing.T) {
	for _, text := range []string{"0", "-1", "x", "1,", "3-2", "2,1", "1-3,3", "1-9223372036854775807", "1 ,2", "99999999999999999999"} {
		if got, err := DecodeIDs(text); err == nil {
			t.Errorf("DecodeIDs(%q): got %d ids and no error, want an error", text, len(got))
		}
	}
}

func FuzzDecodeIDs_RoundTrips(f *testing.F) {
	f.Add("17-20,25")
	f.Add("1-9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := DecodeIDs(text)
		if err != nil {
			return
		}
		again, err := DecodeIDs(EncodeIDs(ids))
		if err != nil || !slices.Equal(again, ids) {
			t.Errorf("%q: got %v, %v after a round trip, want %v", text, again, err, ids)
		}
	})
}
