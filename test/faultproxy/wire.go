package faultproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// What the proxy knows of the MySQL protocol. A frame is a header of four bytes (length and
// sequence number) and its payload; a packet is one frame, or several when it is longer
// than a frame can be.

const (
	maxFrame = 1<<24 - 1 // a frame of this length is continued in the next

	comQuery = 0x03

	okHeader  = 0x00
	eofHeader = 0xfe
	errHeader = 0xff

	// moreResults is SERVER_MORE_RESULTS_EXISTS, in the first byte of the status flags.
	moreResults = 0x08
)

// hidden are the capabilities that the proxy takes out of the server's greeting. They would
// change how a statement or its response looks, or hide it altogether.
const hidden = 1<<5 | // CLIENT_COMPRESS
	1<<7 | // CLIENT_LOCAL_FILES
	1<<11 | // CLIENT_SSL
	1<<24 | // CLIENT_DEPRECATE_EOF
	1<<25 | // CLIENT_OPTIONAL_RESULTSET_METADATA
	1<<26 | // CLIENT_ZSTD_COMPRESSION_ALGORITHM
	1<<27 // CLIENT_QUERY_ATTRIBUTES

var errProtocol = errors.New("not a response to COM_QUERY")

type frame struct {
	seq  byte
	data []byte
}

func readFrame(r io.Reader) (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{seq: head[3], data: make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)}
	if _, err := io.ReadFull(r, f.data); err != nil {
		return frame{}, fmt.Errorf("frame of %d bytes: %w", len(f.data), err)
	}
	return f, nil
}

func appendFrame(b []byte, seq byte, data []byte) []byte {
	n := len(data)
	b = append(b, byte(n), byte(n>>8), byte(n>>16), seq)
	return append(b, data...)
}

type packet struct {
	seq  byte // number of the first frame
	next byte // the number behind the last frame's, which the answer begins with
	data []byte
}

func readPacket(r *bufio.Reader) (packet, error) {
	f, err := readFrame(r)
	p := packet{seq: f.seq, data: f.data}
	for err == nil && len(f.data) == maxFrame {
		f, err = readFrame(r)
		p.data = append(p.data, f.data...)
	}
	p.next = f.seq + 1
	return p, err
}

func appendPacket(b []byte, seq byte, data []byte) []byte {
	b = slices.Grow(b, len(data)+4*(len(data)/maxFrame+1))
	for ; len(data) >= maxFrame; seq++ {
		b = appendFrame(b, seq, data[:maxFrame])
		data = data[maxFrame:]
	}
	return appendFrame(b, seq, data)
}

// errPacket is the payload of an ERR packet.
func errPacket(code uint16, state, message string) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{errHeader}, code)
	return append(append(append(b, '#'), state...), message...)
}

// hideCapabilities clears the hidden capabilities in the greeting, and all of MariaDB's own.
// What is no greeting, an ERR packet say, stays as it is.
func hideCapabilities(greeting []byte) {
	const (
		beforeLower = 4 + 8 + 1 // connection id, scramble, filler; behind the version
		beforeUpper = 1 + 2     // character set, status
		beforeMaria = 1 + 6     // length of the scramble, filler
	)
	if len(greeting) == 0 || greeting[0] == errHeader {
		return
	}
	_, rest, found := bytes.Cut(greeting, []byte{0}) // behind the version
	if !found || len(rest) < beforeLower+2+beforeUpper+2+beforeMaria+4 {
		return
	}
	lower := rest[beforeLower:]
	upper := lower[2+beforeUpper:]
	maria := upper[2+beforeMaria:]
	isMaria := lower[0]&1 == 0 // CLIENT_MYSQL
	binary.LittleEndian.PutUint16(lower, binary.LittleEndian.Uint16(lower)&^(hidden&0xffff))
	binary.LittleEndian.PutUint16(upper, binary.LittleEndian.Uint16(upper)&^(hidden>>16))
	if isMaria {
		clear(maria[:4])
	}
}

// response follows the frames of a response to COM_QUERY to its end. The zero value is
// ready for the first frame.
type response struct {
	state     responseState
	columns   uint64 // column definitions still to come
	continued bool   // the next frame belongs to the packet before
	failed    bool   // the last result is an error
	status    []byte // the status flags in the last frame, nil when it has none
}

type responseState int

const (
	atResult responseState = iota // the first packet of a result comes next
	atColumns
	atColumnsEnd
	atRows
)

// next takes the payload of the next frame and says whether the response ends with it.
func (r *response) next(data []byte) (end bool, err error) {
	r.status = nil
	inside := r.continued
	r.continued = len(data) == maxFrame
	if inside {
		return false, nil
	}
	if len(data) == 0 {
		return false, fmt.Errorf("%w: empty packet", errProtocol)
	}
	if data[0] == errHeader {
		r.failed = true
		return true, nil
	}
	isEOF := data[0] == eofHeader && len(data) < 9
	switch r.state {
	case atResult:
		return r.result(data)
	case atColumns:
		if r.columns--; r.columns == 0 {
			r.state = atColumnsEnd
		}
		return false, nil
	case atColumnsEnd:
		if !isEOF {
			return false, fmt.Errorf("%w: no EOF behind the columns", errProtocol)
		}
		r.state = atRows
		_, err := r.flags(data, 3)
		return false, err
	default: // atRows
		if !isEOF {
			return false, nil
		}
		r.state = atResult
		return r.flags(data, 3)
	}
}

// result takes the first packet of a result: OK, or the number of columns.
func (r *response) result(data []byte) (end bool, err error) {
	if data[0] == okHeader {
		_, affected := lengthEncoded(data[1:])
		_, lastID := lengthEncoded(data[1+affected:])
		if affected == 0 || lastID == 0 {
			return false, fmt.Errorf("%w: short OK", errProtocol)
		}
		return r.flags(data, 1+affected+lastID)
	}
	columns, n := lengthEncoded(data)
	if n != len(data) || columns == 0 {
		return false, fmt.Errorf("%w: it begins with %#x", errProtocol, data[0])
	}
	r.state, r.columns = atColumns, columns
	return false, nil
}

// flags takes the status flags at the given place, and says whether they are those of the
// last result.
func (r *response) flags(data []byte, at int) (last bool, err error) {
	if len(data) < at+2 {
		return false, fmt.Errorf("%w: no status flags", errProtocol)
	}
	r.status = data[at : at+2]
	return r.status[0]&moreResults == 0, nil
}

// lengthEncoded reads a length-encoded integer and returns its size too, 0 when there is
// none.
func lengthEncoded(b []byte) (value uint64, size int) {
	if len(b) == 0 {
		return 0, 0
	}
	switch b[0] {
	case 0xfc:
		size = 3
	case 0xfd:
		size = 4
	case 0xfe:
		size = 9
	case 0xfb, 0xff: // NULL, error
		return 0, 0
	default:
		return uint64(b[0]), 1
	}
	if len(b) < size {
		return 0, 0
	}
	for i := size - 1; i > 0; i-- {
		value = value<<8 | uint64(b[i])
	}
	return value, size
}

// statementEnds returns where each statement of the text ends, its semicolon not included.
// Semicolons within quotes don't count, an empty statement is none. Comments aren't known:
// a quote or a semicolon in one misleads it.
func statementEnds(sql string) []int {
	var ends []int
	var quote byte
	blank := true
	for i := 0; i < len(sql); i++ {
		switch c := sql[i]; {
		case quote != 0:
			if c == '\\' && quote != '`' {
				i++
			} else if c == quote {
				quote = 0 // a doubled quote opens it again
			}
		case c == ';':
			if !blank {
				ends = append(ends, i)
			}
			blank = true
		case c == '\'' || c == '"' || c == '`':
			quote, blank = c, false
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			blank = false
		}
	}
	if !blank {
		ends = append(ends, len(sql))
	}
	return ends
}
