package store

import (
	"crypto/rand"
	"encoding/binary"
)

// NewToken is a random positive number for a claim, never given out again.
func NewToken() int64 {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if t := int64(binary.BigEndian.Uint64(b[:]) >> 1); t != 0 {
			return t
		}
	}
}
