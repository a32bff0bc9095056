// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestLoop sends queries with loop names: one that this process sent is not forwarded, any other is handled like a
// usual query.
func TestLoop(t *testing.T) {
	t.Parallel()
	const name = "000102030405060708090a0b0c0d0e0f.loop.node-cache.example."
	for _, tt := range []struct {
		name, asked string
		loop        func([]byte) bool
		rcode       int
		upstream    int // queries there
	}{
		{name: "our own", asked: name, loop: func([]byte) bool { return true }, rcode: dns.RcodeRefused},
		{name: "our own in other letters", asked: "000102030405060708090A0B0C0D0E0F.Loop.Node-Cache.Example.", loop: func([]byte) bool { return true }, rcode: dns.RcodeRefused},
		{name: "another's", asked: name, loop: func([]byte) bool { return false }, upstream: 1},
		{name: "unknown to all", asked: name, upstream: 1},
		{name: "a name below", asked: "a." + name, loop: func([]byte) bool { return true }, upstream: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			p := plan(t, u)
			var found []byte
			if tt.loop != nil {
				p.Loop = func(name []byte) bool {
					found = append(found, name...)
					return tt.loop(name)
				}
			}
			r := newResolver(t, p)
			c := newClient(r, false)
			m := unpack(t, c.exchange(t, pack(t, question(tt.asked, dns.TypeA))))
			if m.Rcode != tt.rcode || u.count() != tt.upstream {
				t.Errorf("rcode %d and %d queries upstream, want %d and %d", m.Rcode, u.count(), tt.rcode, tt.upstream)
			}
			if got, _, err := dns.UnpackDomainName(found, 0); len(found) > 0 && (err != nil || got != name) {
				t.Errorf("found %q, error %v, want %q", got, err, name)
			}
			if n := r.Stats().Responses[resolve.SourceRefused][dns.RcodeRefused]; n != uint64(1-tt.upstream) {
				t.Errorf("%d refused, want %d", n, 1-tt.upstream)
			}
		})
	}
}
