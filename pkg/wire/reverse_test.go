// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestReverseAllocations is the budget of reading and writing such a name: none.
func TestReverseAllocations(t *testing.T) {
	room := make([]byte, 0, wire.MaxName)
	for _, addr := range []string{"203.0.113.7", "2001:db8::7"} {
		name := wire.AppendReverse(nil, netip.MustParseAddr(addr).AsSlice())
		if got := testing.AllocsPerRun(100, func() {
			var buf [16]byte
			read, _ := wire.ReverseAddr(name, &buf)
			room = wire.AppendReverse(room[:0], read)
		}); got != 0 {
			t.Errorf("%s: %v allocations, want 0", addr, got)
		}
	}
}

// FuzzReverseAddr holds the names of addresses against the oracle, both ways: those of
// any address, and whether any name is one of them.
func FuzzReverseAddr(f *testing.F) {
	for _, addr := range []string{"0.0.0.0", "10.96.0.1", "255.200.100.99", "::", "::ffff:10.0.0.1", "2001:db8::1", "fd00:ff:abcd::9fff"} {
		raw := netip.MustParseAddr(addr).AsSlice()
		f.Add(raw, wire.AppendReverse(nil, raw))
	}
	const four, six = "\x07in-addr\x04arpa\x00", "\x03ip6\x04arpa\x00"
	nibbles := strings.Repeat("\x010", 31)
	for _, name := range []string{
		four, "\x03256\x010\x010\x010" + four, "\x0201\x010\x010\x010" + four, "\x01a\x010\x010\x010" + four, "\x02+1\x010\x010\x010" + four,
		"\x041000\x010\x010\x010" + four, "\x010\x010\x010" + four, "\x010\x010\x010\x010\x010" + four, "\x010\x010\x010\x0f1" + four,
		six, "\x01f" + nibbles + six, "\x01F" + nibbles + six, "\x01g" + nibbles + six, "\x01/" + nibbles + six, "\x0300" + nibbles[2:] + six,
		nibbles + six, "\x010\x010" + nibbles + six, "\x00", "\x03www\x07example\x00",
	} {
		f.Add([]byte("1234"), []byte(name))
	}
	f.Fuzz(func(t *testing.T, raw, name []byte) {
		checkReverse(t, raw)
		var q wire.Query
		if q.Parse(ask(0, name)) != wire.RcodeSuccess {
			return
		}
		var buf [16]byte
		addr, tree := wire.ReverseAddr(q.Name(), &buf)
		text, _, err := dns.UnpackDomainName(q.Name(), 0)
		assert.NoError(t, err)
		if addr != nil {
			if want := oracleReverse(t, addr); want != text {
				t.Errorf("%s is read as %v, of which the name is %s", text, addr, want)
			}
			if got, _, _ := dns.UnpackDomainName(q.Name()[tree:], 0); got != "in-addr.arpa." && got != "ip6.arpa." {
				t.Errorf("the tree of %s is %s", text, got)
			}
			return
		}
		if raw := addrBytesOf(text); raw != nil && oracleReverse(t, raw) == text {
			t.Errorf("%s is not read, which is the name of %v", text, raw)
		}
	})
}

// checkReverse writes the name of an address and reads it.
func checkReverse(t *testing.T, raw []byte) {
	t.Helper()
	if len(raw) != 4 && len(raw) != 16 {
		return
	}
	name := wire.AppendReverse(nil, raw)
	if text, end, err := dns.UnpackDomainName(name, 0); err != nil || end != len(name) || text != oracleReverse(t, raw) {
		t.Fatalf("the name of %v is %s (%v), want %s", raw, text, err, oracleReverse(t, raw))
	}
	var buf [16]byte
	if back, _ := wire.ReverseAddr(name, &buf); !bytes.Equal(back, raw) {
		t.Fatalf("the name of %v is read as %v", raw, back)
	}
}

// oracleReverse is the oracle's name of an address. It takes IPv4 addresses in the form
// of IPv6 for such of IPv4, for which the name is spelled out here.
func oracleReverse(t *testing.T, raw []byte) string {
	t.Helper()
	addr, _ := netip.AddrFromSlice(raw)
	if addr.Is4In6() {
		var text strings.Builder
		for _, b := range slices.Backward(raw) {
			fmt.Fprintf(&text, "%x.%x.", b&0xf, b>>4)
		}
		return text.String() + "ip6.arpa."
	}
	name, err := dns.ReverseAddr(addr.String())
	assert.NoError(t, err)
	return name
}

// addrBytesOf are those that a name in one of the trees may be of, read by parts; nil: of
// none.
func addrBytesOf(name string) []byte {
	labels := dns.SplitDomainName(name)
	slices.Reverse(labels[:max(len(labels)-2, 0)])
	var text string
	switch {
	case strings.HasSuffix(name, ".in-addr.arpa.") && len(labels) == 6:
		text = strings.Join(labels[:4], ".")
	case strings.HasSuffix(name, ".ip6.arpa.") && len(labels) == 34:
		for i, digit := range labels[:32] {
			if i > 0 && i%4 == 0 {
				text += ":"
			}
			text += digit
		}
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	return addr.AsSlice()
}
