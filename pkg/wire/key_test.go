// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestQueryKeySame(t *testing.T) {
	t.Parallel()
	base := parseQuery(t, ask(flagsQuery, labels("www", "example"))).Key()
	tests := []struct {
		name string
		pkt  []byte
	}{
		{"letter case", ask(flagsQuery, labels("WwW", "eXAMPLE"))},
		{"RD", ask(0, labels("www", "example"))},
		{"AD", ask(flagsQuery|0x20, labels("www", "example"))},
		{"OPT", ask(flagsQuery, labels("www", "example"), opt(1232, 0, 0))},
		{"cookie", ask(flagsQuery, labels("www", "example"), opt(1232, 0, 0, option(10, make([]byte, 8)...)))},
		{"subnet that is not passed on", ask(flagsQuery, labels("www", "example"), opt(1232, 0, 0, option(8, 0, 1, 8, 0, 10)))},
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, base, parseQuery(t, tt.pkt).Key())
	}
}

// TestQueryKeyDiffers holds many queries against each other: no two share a key.
func TestQueryKeyDiffers(t *testing.T) {
	t.Parallel()
	names := [][]byte{
		labels(), labels("a"), labels("a", "a"), labels("aa"), labels("a.a"), labels("a", "b"), labels("ab"),
		labels("a\x00"), labels("a\x00", "\x01"), labels("\x01a"), labels("\x01"), labels("\x00"), labels("\x00\x01"),
		labels("\xc1"), labels("\xe1"), labels("@"), labels("`"), labels("["), labels("{"),
		longName(254), longName(255),
	}
	subnets := [][]byte{nil, {0, 1, 0, 0}, {0, 1, 8, 0, 10}, {0, 1, 24, 0, 10, 0, 0}, append([]byte{0, 2, 128, 0}, make([]byte, 16)...)}
	seen := map[string]string{}
	for _, name := range names {
		for _, rrtype := range []uint16{0, 1, 256, 257, 28} {
			for _, flags := range []uint16{0, 0x10} {
				for _, do := range []uint16{0, 0x8000} {
					for _, subnet := range subnets {
						var options []byte
						if subnet != nil {
							options = option(8, subnet...)
						}
						pkt := cat(header(flags, 1, 0, 0, 1), question(name, rrtype), opt(1232, 0, do, options))
						q := parseQuery(t, pkt)
						q.AddSubnetToKey()
						if before, ok := seen[string(q.Key())]; ok {
							t.Fatalf("%x and %x share the key %x", before, pkt, q.Key())
						}
						seen[string(q.Key())] = string(pkt)
					}
				}
			}
		}
	}
}

func TestQueryKeySubnet(t *testing.T) {
	t.Parallel()
	with := parseQuery(t, ask(flagsQuery, labels("a"), opt(1232, 0, 0, option(8, 0, 1, 8, 0, 10))))
	without := parseQuery(t, ask(flagsQuery, labels("a"), opt(1232, 0, 0)))
	plain := bytes.Clone(without.Key())
	without.AddSubnetToKey()
	assert.Same(t, "no subnet changes the key", plain, without.Key())
	with.AddSubnetToKey()
	with.AddSubnetToKey()
	assert.Same(t, "subnet twice", cat(plain, []byte{0, 1, 8, 0, 10}), with.Key())
	if fault := with.Parse(ask(flagsQuery, labels("a"))); fault != wire.RcodeSuccess {
		t.Fatalf("fault %d", fault)
	}
	assert.Same(t, "the subnet outlives its query", plain, with.Key())
	longest := parseQuery(t, ask(flagsQuery, longName(255), opt(1232, 0, 0, option(8, append([]byte{0, 2, 128, 0}, make([]byte, 16)...)...))))
	longest.AddSubnetToKey()
	assert.Same(t, "the longest key", 255+3+20, len(longest.Key()))
}

func TestQueryLimit(t *testing.T) {
	t.Parallel()
	a := labels("a")
	tests := []struct {
		name   string
		pkt    []byte
		stream bool
		udpMax int
		want   int
	}{
		{"UDP without EDNS", ask(0, a), false, 1232, 512},
		{"UDP with a small size", ask(0, a, opt(100, 0, 0)), false, 1232, 512},
		{"UDP with a middling size", ask(0, a, opt(900, 0, 0)), false, 1232, 900},
		{"UDP with a large size", ask(0, a, opt(4096, 0, 0)), false, 1232, 1232},
		{"UDP with a raised maximum", ask(0, a, opt(4096, 0, 0)), false, 4096, 4096},
		{"UDP with a maximum below 512", ask(0, a), false, 400, 400},
		{"TCP without EDNS", ask(0, a), true, 1232, 65535},
		{"TCP with a small size", ask(0, a, opt(512, 0, 0)), true, 1232, 65535},
	}
	for _, tt := range tests {
		assert.Same(t, tt.name, tt.want, parseQuery(t, tt.pkt).Limit(tt.stream, tt.udpMax))
	}
}
