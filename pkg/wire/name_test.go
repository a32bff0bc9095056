// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/nodecache/node-cache/pkg/wire"
)

// slowLower is b with the ASCII letters A to Z in lower case, octet by octet.
func slowLower(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if bytes.IndexByte([]byte("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), c) >= 0 {
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return out
}

// TestLowerEveryOctet puts every octet at every place of a word.
func TestLowerEveryOctet(t *testing.T) {
	t.Parallel()
	for size := range 18 {
		for at := range size {
			for c := range 256 {
				src := bytes.Repeat([]byte{0xff}, size)
				src[at] = byte(c)
				got := make([]byte, size)
				wire.Canonical(got, src)
				if want := slowLower(src); !bytes.Equal(want, got) {
					t.Fatalf("%x: got %x, want %x", src, got, want)
				}
				wire.Canonical(src, src)
				if !bytes.Equal(src, got) {
					t.Fatalf("in place: got %x, want %x", src, got)
				}
			}
		}
	}
}

// TestEqualFoldEveryPair compares every two octets.
func TestEqualFoldEveryPair(t *testing.T) {
	t.Parallel()
	for a := range 256 {
		for b := range 256 {
			x, y := []byte{'.', byte(a)}, []byte{'.', byte(b)}
			if got, want := wire.EqualFold(x, y), bytes.Equal(slowLower(x), slowLower(y)); got != want {
				t.Errorf("%x and %x: got %t, want %t", a, b, got, want)
			}
		}
	}
}
