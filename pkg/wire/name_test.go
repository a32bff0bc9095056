// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"strings"
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

// TestAppendName reads names in presentation format.
func TestAppendName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("a", 49)+".", 5) // 250 bytes in wire form, without the root label
	tests := []struct {
		name, text string
		want       []byte // nil: refused
		plain      bool   // AppendPlainName takes it too
	}{
		{"absolute", "www.Example.", labels("www", "example"), true},
		{"without the final dot", "www.EXAMPLE", labels("www", "example"), true},
		{"root", ".", labels(), false},
		{"service and wildcard", "*._x.a-0", labels("*", "_x", "a-0"), true},
		{"escaped dot", `a\.b.c`, labels("a.b", "c"), false},
		{"escaped final dot", `a\.`, labels("a."), false},
		{"number", `\065\000\255.c`, labels("a\x00\xff", "c"), false},
		{"bytes above 127", "\xc3\x84.de", labels("\xc3\x84", "de"), false},
		{"space", "a b", labels("a b"), false},
		{"longest label", strings.Repeat("a", 63), labels(strings.Repeat("a", 63)), true},
		{"label too long", strings.Repeat("a", 64), nil, false},
		{"label too long by an escape", strings.Repeat("a", 63) + `\065`, nil, false},
		{"longest name", long + "aaa", labels(strings.Split(long+"aaa", ".")...), true},
		{"name too long", long + "aaaa", nil, false},
		{"empty", "", nil, false},
		{"empty label", "a..b", nil, false},
		{"empty first label", ".a", nil, false},
		{"two final dots", "a..", nil, false},
		{"escape at the end", `a\`, nil, false},
		{"number of two digits", `\06.`, nil, false},
		{"number over 255", `\256`, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := wire.AppendName([]byte("before"), tt.text)
			if !bytes.Equal(got, append([]byte("before"), tt.want...)) || (err != nil) != (tt.want == nil) {
				t.Errorf("%x, %v; want %x", got, err, tt.want)
			}
			if _, err := wire.AppendPlainName(nil, tt.text); (err == nil) != tt.plain {
				t.Errorf("as a plain name: %v", err)
			}
		})
	}
}
