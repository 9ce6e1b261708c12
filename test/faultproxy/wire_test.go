package faultproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPacket_ReadsBackWhatWasAppended(t *testing.T) {
	long := bytes.Repeat([]byte("x"), maxFrame+1)
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1} {
		data := long[:size]
		r := bufio.NewReader(bytes.NewReader(appendPacket(nil, 3, data)))
		got, err := readPacket(r)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		wantNext := 3 + byte(size/maxFrame) + 1
		if got.seq != 3 || got.next != wantNext || !bytes.Equal(got.data, data) {
			t.Errorf("%d bytes: got %d bytes, numbers %d to %d, want 3 to %d", size, len(got.data), got.seq, got.next, wantNext)
		}
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("%d bytes: something is left behind the packet", size)
		}
	}
}

var (
	okLast  = []byte{okHeader, 1, 0, 2, 0, 0, 0}
	okMore  = []byte{okHeader, 0xfc, 0, 1, 0, 2 | moreResults, 0, 0, 0}
	eofLast = []byte{eofHeader, 0, 0, 2, 0}
	eofMore = []byte{eofHeader, 0, 0, 2 | moreResults, 0}
	column  = []byte("\x03def...")
	row     = []byte("\x02ab")
	failure = errPacket(1213, "40001", "deadlock")
	huge    = append([]byte{eofHeader}, make([]byte, maxFrame-1)...)
)

func TestResponse_EndsWithItsLastFrame(t *testing.T) {
	for name, frames := range map[string][][]byte{
		"OK":                            {okLast},
		"error":                         {failure},
		"two OK":                        {okMore, okLast},
		"OK, error":                     {okMore, failure},
		"rows":                          {{2}, column, column, eofLast, row, row, eofLast},
		"no rows":                       {{1}, column, eofLast, eofLast},
		"error in the columns":          {{2}, column, failure},
		"error in the rows":             {{1}, column, eofLast, row, failure},
		"rows, OK":                      {{1}, column, eofMore, row, eofMore, okLast},
		"rows, rows":                    {{1}, column, eofMore, row, eofMore, {1}, column, eofLast, eofLast},
		"row of NULL and empty":         {{1}, column, eofLast, {0xfb}, {0}, eofLast},
		"long row":                      {{1}, column, eofLast, huge, eofLast, row, eofLast},
		"row of exactly one frame":      {{1}, column, eofLast, huge, {}, eofLast},
		"300 columns":                   append(append([][]byte{{0xfc, 0x2c, 1}}, slices.Repeat([][]byte{column}, 300)...), eofLast, eofLast),
		"OK with a message of an error": {append(slices.Clone(okLast), failure...)},
	} {
		var r response
		for i, f := range frames {
			end, err := r.next(f)
			if err != nil {
				t.Errorf("%s: frame %d: %v", name, i, err)
				break
			}
			if want := i == len(frames)-1; end != want {
				t.Errorf("%s: frame %d: got end %t, want %t", name, i, end, want)
			}
		}
		if got, want := r.failed, frames[len(frames)-1][0] == errHeader; got != want {
			t.Errorf("%s: got failed %t, want %t", name, got, want)
		}
	}
}

func TestResponse_RefusesWhatItCantFollow(t *testing.T) {
	for name, frames := range map[string][][]byte{
		"empty":                  {{}},
		"LOAD DATA LOCAL":        {[]byte("\xfbfile")},
		"EOF":                    {eofLast},
		"short OK":               {{okHeader, 1, 0, 2}},
		"half an integer":        {{okHeader, 0xfc, 1}},
		"no columns":             {{0xfc, 0, 0}},
		"metadata flag":          {{1, 1}},
		"no EOF behind columns":  {{1}, column, row},
		"EOF without its status": {{1}, column, eofLast, {eofHeader, 0, 0}},
	} {
		var r response
		var err error
		for _, f := range frames {
			_, err = r.next(f)
		}
		if !errors.Is(err, errProtocol) {
			t.Errorf("%s: got %v, want %v", name, err, errProtocol)
		}
	}
}

// FuzzResponse feeds the parser what a broken server might send. In the input, each frame
// has one byte with its length before it.
func FuzzResponse(f *testing.F) {
	add := func(frames ...[]byte) {
		var b []byte
		for _, data := range frames {
			b = append(append(b, byte(len(data))), data...)
		}
		f.Add(b)
	}
	add(okMore, okLast)
	add([]byte{1}, column, eofMore, row, eofMore, failure)
	add([]byte{0xfd, 1, 0, 0}, column, eofLast, []byte{0xfb}, eofLast)
	add([]byte{0xfe, 0, 0, 0, 0, 0, 0, 0, 1}, column)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r response
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			data := b[1 : 1+n]
			b = b[1+n:]
			end, err := r.next(data)
			if r.status != nil && len(r.status) != 2 {
				t.Fatalf("status flags of %d bytes in %x", len(r.status), data)
			}
			if err != nil {
				return
			}
			if end {
				if !r.failed && r.status[0]&moreResults != 0 {
					t.Fatalf("ends with %x, which says that more comes", data)
				}
				return
			}
		}
	})
}

func FuzzReadPacket(f *testing.F) {
	f.Add(appendPacket(nil, 0, []byte("\x03SELECT 1")))
	f.Add([]byte{1, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := readPacket(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		if got := appendPacket(nil, p.seq, p.data); !bytes.HasPrefix(b, got) {
			t.Fatalf("read from %x, written as %x", b, got)
		}
	})
}

// greeting builds a version 10 greeting with all capabilities set but those cleared.
func greeting(version string, cleared uint32) []byte {
	capabilities := ^cleared
	b := append([]byte{10}, version...)
	b = append(b, 0)
	b = append(b, "\x01\x02\x03\x04saltsalt\x00"...)
	b = binary.LittleEndian.AppendUint16(b, uint16(capabilities))
	b = append(b, 45, 2, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(capabilities>>16))
	b = append(b, 21, 0, 0, 0, 0, 0, 0, 0x1d, 0, 0, 0)
	return append(b, "moresaltmore\x00mysql_native_password\x00"...)
}

func TestHideCapabilities_ClearsTheirBitsOnly(t *testing.T) {
	got := greeting("9.7.0", 0)
	hideCapabilities(got)
	if diff := cmp.Diff(greeting("9.7.0", hidden), got); diff != "" {
		t.Errorf("MySQL (-want +got):\n%s", diff)
	}
	got = greeting("5.5.5-10.11.6-MariaDB", 1)
	hideCapabilities(got)
	want := bytes.Replace(greeting("5.5.5-10.11.6-MariaDB", 1|hidden), []byte{0x1d, 0, 0, 0}, []byte{0, 0, 0, 0}, 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("MariaDB (-want +got):\n%s", diff)
	}
}

func FuzzHideCapabilities(f *testing.F) {
	f.Add(greeting("9.7.0", 0))
	f.Add(greeting("10.11", 1))
	f.Add(errPacket(1040, "08004", "Too many connections"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		hideCapabilities(b)
		for i := range b {
			if b[i]&^before[i] != 0 {
				t.Fatalf("byte %d: got %#x from %#x, want bits cleared only", i, b[i], before[i])
			}
		}
		once := slices.Clone(b)
		hideCapabilities(b)
		if !bytes.Equal(once, b) {
			t.Fatalf("the second time changes %x to %x", once, b)
		}
	})
}

func TestStatementEnds_SplitsOutsideQuotesOnly(t *testing.T) {
	for sql, want := range map[string][]string{
		"":                       nil,
		" ; ;":                   nil,
		"SELECT 1":               {"SELECT 1"},
		"SELECT 1;":              {"SELECT 1"},
		"SELECT 1; SELECT 2":     {"SELECT 1", " SELECT 2"},
		"a;b;;c ; ":              {"a", "b", "c "},
		"SELECT ';'; b":          {"SELECT ';'", " b"},
		`SELECT 'it''s;'; b`:     {`SELECT 'it''s;'`, " b"},
		`SELECT '\';'; b`:        {`SELECT '\';'`, " b"},
		`SELECT "';\"", '";'; b`: {`SELECT "';\"", '";'`, " b"},
		"SELECT `\\`; b":         {"SELECT `\\`", " b"},
		"'open; ":                {"'open; "},
		`'open\`:                 {`'open\`},
	} {
		var got []string
		begin := 0
		for _, end := range statementEnds(sql) {
			got = append(got, strings.TrimLeft(sql[begin:end], ";"))
			begin = end
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", sql, diff)
		}
	}
}

// FuzzStatementEnds holds that the first n statements, cut off, are n statements.
func FuzzStatementEnds(f *testing.F) {
	f.Add("START TRANSACTION; INSERT INTO t VALUES ('a;\\'b'); COMMIT")
	f.Add("`a;`;\"b\\\";\";c;")
	f.Fuzz(func(t *testing.T, sql string) {
		ends := statementEnds(sql)
		for n, end := range ends {
			if got := statementEnds(sql[:end]); !slices.Equal(got, ends[:n+1]) {
				t.Fatalf("%q: got %v, of its first %d bytes %v", sql, ends, end, got)
			}
		}
	})
}
