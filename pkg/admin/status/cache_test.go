// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
)

func TestViewOf(t *testing.T) {
	t.Parallel()
	m := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeTXT)
	for _, text := range []string{`www.example.com. 60 IN TXT "a	b" "two words"`, `www.example.com. 60 IN TXT "\000"`} {
		rr, err := dns.NewRR(text)
		assert.NoError(t, err)
		m.Answer = append(m.Answer, rr)
	}
	soa, _ := dns.NewRR("example.com. 30 IN SOA ns.example.com. host.example.com. 1 2 3 4 30")
	m.Ns = append(m.Ns, soa)
	msg, err := m.Pack()
	assert.NoError(t, err)
	name := []byte("\x03www\x07example\x03com\x00")
	for _, tt := range []struct {
		name string
		in   cache.Entry
		want CacheEntry
	}{
		{
			"an answer",
			cache.Entry{Name: name, Type: dns.TypeTXT, DO: true, State: cache.Fresh, Age: 1900 * time.Millisecond, Left: 58100 * time.Millisecond, Hits: 3, Size: 160, Msg: msg},
			CacheEntry{
				Name: "www.example.com.", Type: "TXT", Flags: []string{"DO"}, State: "fresh", Rcode: "NOERROR", Age: 1, Left: 59, Hits: 3, Bytes: 160,
				Records: []string{
					`www.example.com. 60 IN TXT "a\009b" "two words"`, `www.example.com. 60 IN TXT "\000"`,
					"example.com. 30 IN SOA ns.example.com. host.example.com. 1 2 3 4 30",
				},
			},
		},
		{
			"an expired denial",
			cache.Entry{Name: name, CD: true, State: cache.Stale, Rcode: 3, Age: 90 * time.Second, Left: -60500 * time.Millisecond},
			CacheEntry{Name: "www.example.com.", Type: "*", Flags: []string{"CD"}, State: "stale", Rcode: "NXDOMAIN", Age: 90, Left: -60},
		},
		{
			"a type without a name, of a subnet",
			cache.Entry{Name: []byte{0}, Type: 65280, State: cache.Fresh, Subnet: []byte{0, 1, 20, 0, 192, 0, 32}, Msg: []byte("what cannot be read")},
			CacheEntry{Name: ".", Type: "TYPE65280", Subnet: "192.0.32.0/20", State: "fresh", Rcode: "NOERROR"},
		},
		{
			"a name that could steer a terminal",
			cache.Entry{Name: []byte("\x04\x1b[2J\x01.\x00"), Type: 1, State: cache.Fresh, Subnet: []byte{0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 1}},
			CacheEntry{Name: `\027[2J.\..`, Type: "A", Subnet: "2001:db8:0:100::/56", State: "fresh", Rcode: "NOERROR"},
		},
		{
			"an answer that is kept",
			cache.Entry{Name: name, Type: 1, State: cache.Fresh, Kept: true, Vouched: true, Age: time.Hour, Left: 5 * time.Second},
			CacheEntry{Name: "www.example.com.", Type: "A", State: "fresh", Rcode: "NOERROR", Age: 3600, Kept: true, Left: 5},
		},
		{
			"an answer whose server is silent",
			cache.Entry{Name: name, Type: 1, State: cache.Fresh, Kept: true, Age: time.Hour, Left: time.Second},
			CacheEntry{Name: "www.example.com.", Type: "A", State: "fresh", Rcode: "NOERROR", Age: 3600, Left: 1},
		},
		{
			"a client that opts out of subnets",
			cache.Entry{Name: name, Type: 1, State: cache.Fresh, Subnet: []byte{0, 0, 0, 0}},
			CacheEntry{Name: "www.example.com.", Type: "A", Subnet: "none", State: "fresh", Rcode: "NOERROR"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Same(t, "got", tt.want, entryView(&tt.in))
		})
	}
}

func TestGivenName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"www.Example.": "\x03www\x07example\x00", "www.example": "\x03www\x07example\x00", ".": "\x00", `a\.b.c`: "\x03a.b\x01c\x00",
		"": "", "a..b": "", ".a": "", "a." + string(make([]byte, 300)): "",
	} {
		got, err := parseName(text)
		if string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestRecordType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint16{
		"A": 1, "aaaa": 28, "https": 65, "TYPE1": 1, "type65280": 65280,
		"": 0, "BOGUS": 0, "TYPE": 0, "TYPE0": 0, "TYPE65536": 0, "TYPE-1": 0, "28": 0,
	} {
		got, err := RecordType(text)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}
