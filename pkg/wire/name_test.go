// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

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

// TestMessageSameOwner compares owners that reach their labels in different ways.
func TestMessageSameOwner(t *testing.T) {
	t.Parallel()
	first := record(cat([]byte{3}, []byte("www"), pointer(12)), wire.TypeTXT, nil)
	tests := []struct {
		name string
		with []byte
		want bool
	}{
		{"a pointer to it", pointer(firstRecord), true},
		{"written out in full", labels("www", "example"), true},
		{"other letter case", labels("WWW", "eXample"), true},
		{"label and pointer", cat([]byte{3}, []byte("WwW"), pointer(12)), true},
		{"its parent", pointer(12), false},
		{"its child", cat([]byte{1, 'a'}, pointer(firstRecord)), false},
		{"one label with a dot", labels("www.example"), false},
		{"root", labels(), false},
		{"a byte 0x20 apart that is no letter", labels("www", "\x45xampl\x25"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parseMessage(t, reply(2, 0, 0, first, record(tt.with, wire.TypeTXT, nil)))
			got := [2]bool{m.SameOwner(m.Records[0], m.Records[1]), m.SameOwner(m.Records[1], m.Records[0])}
			if diff := cmp.Diff([2]bool{tt.want, tt.want}, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
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
			if diff := cmp.Diff(tt.wire, packed[:n]); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
