// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// slowLower is b with the ASCII letters A to Z in lower case, byte by byte.
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

// TestLowerEveryByte puts every byte at every place of a word.
func TestLowerEveryByte(t *testing.T) {
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

// TestEqualFoldEveryPair compares every two bytes.
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

func TestAppendText(t *testing.T) {
	t.Parallel()
	every := make([]byte, 0, 256)
	for c := range 256 {
		every = append(every, byte(c))
	}
	tests := []struct {
		name string
		wire []byte
		want string // empty: only what the oracle makes of it counts
	}{
		{"root", labels(), "."},
		{"plain", labels("www", "Example"), "www.Example."},
		{"service and wildcard", labels("*", "_x", "a-0"), "*._x.a-0."},
		{"dot, space and NUL in a label", labels("a. \x00"), `a\046\032\000.`},
		{"bytes above 127", labels("\x80\xff"), `\128\255.`},
		{"every byte", labels(string(every[:63]), string(every[63:126]), string(every[126:189])), ""},
		{"the other bytes", labels(string(every[189:252]), string(every[252:])), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := string(wire.AppendText(nil, tt.wire))
			if tt.want != "" && got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			packed := make([]byte, 255)
			n, err := dns.PackDomainName(got, packed, 0, nil, false)
			if err != nil {
				t.Fatalf("the oracle cannot read %q: %v", got, err)
			}
			assert.Same(t, "result", tt.wire, packed[:n])
		})
	}
}
