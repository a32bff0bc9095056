// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// inFull returns an answer as a server sends it that writes each name in full.
func inFull(tb testing.TB, msg []byte) []byte {
	tb.Helper()
	var m dns.Msg
	assert.NoError(tb, m.Unpack(msg))
	m.Compress = false
	out, err := m.Pack()
	assert.NoError(tb, err)
	return out
}

// TestCompress compares the sizes of answers that were written in full with those of the compressor of another library.
func TestCompress(t *testing.T) {
	t.Parallel()
	var services, endpoints, addresses []string
	for i := range 300 {
		services = append(services, fmt.Sprintf("_http._tcp.web.shop.svc.cluster.local. 5 IN SRV 0 1 80 10-0-0-%d.web.shop.svc.cluster.local.", i))
		endpoints = append(endpoints, fmt.Sprintf("10-0-0-%d.web.shop.svc.cluster.local. 5 IN A 10.0.0.1", i))
		addresses = append(addresses, "www.example. 5 IN A 10.0.0.1")
	}
	for name, msg := range map[string][]byte{
		"addresses":    answerOf(t, "www.example.", dns.TypeA, addresses, nil, nil),
		"alias":        recastSeeds(t)[1],
		"other names":  answerOf(t, "www.example.", dns.TypeMX, []string{"www.example. 5 IN MX 1 a.example.", "www.example. 5 IN MX 1 b.a.example."}, nil, nil),
		"letters":      answerOf(t, "www.example.", dns.TypeNS, []string{"www.example. 5 IN NS Ns.Example.", "www.example. 5 IN NS ns.example."}, nil, nil),
		"denial":       recastSeeds(t)[4],
		"services":     answerOf(t, "_http._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, services, nil, endpoints),
		"DNAME":        answerOf(t, "www.old.example.", dns.TypeA, []string{"old.example. 5 IN DNAME new.old.example.", "www.old.example. 5 IN CNAME www.new.old.example."}, nil, nil),
		"a long chain": recastSeeds(t)[6],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full := inFull(t, msg)
			m := parseMessage(t, slices.Clone(full))
			var c wire.Rewriter
			assert.NoError(t, c.Compress(m))
			if len(m.Raw) > len(msg)+len(msg)/20 { // a few names of many may be lost
				t.Errorf("%d bytes of %d, want %d", len(m.Raw), len(full), len(msg))
			}
			assert.Same(t, "records", view(t, parseMessage(t, full)), view(t, m))
		})
	}
}

// FuzzCompress compresses any message that is parsed, and reads with the oracle that it says the same.
func FuzzCompress(f *testing.F) {
	for _, msg := range append(seedAnswers(f), recastSeeds(f)...) {
		f.Add(msg)
	}
	for _, msg := range recastSeeds(f) {
		f.Add(inFull(f, msg))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		original := new(dns.Msg)
		if m.Parse(msg) != nil || m.HasOPT() || original.Unpack(m.Raw) != nil {
			return
		}
		size := len(m.Raw)
		var c wire.Rewriter
		for range 2 { // what is left of the first time must not matter
			assert.NoError(t, m.Parse(slices.Clone(msg)))
			assert.NoError(t, c.Compress(&m))
			compareTexts(t, &m, original, m.Raw)
		}
		if len(m.Raw) > 2*size {
			t.Errorf("%d bytes became %d", size, len(m.Raw))
		}
	})
}
