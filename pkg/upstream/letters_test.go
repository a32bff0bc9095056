// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// The letters of names are mixed over UDP, unless that is not wanted, and nowhere else. The answer has those of the
// query all the same.
func TestRandomCase(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		network string
		plain   bool
		mixed   bool
	}{
		{name: "udp", network: "udp", mixed: true},
		{name: "udp, as they are", network: "udp", plain: true},
		{name: "tcp", network: "tcp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{upstreamtest.Forged}}))
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{target(tt.network, addrA)}, Dial: upstreamtest.Network{addrA: s}.Dial, NoRandomCase: tt.plain,
				})
				run(t, p)
				q := question(t, "a-name-with-many-letters.example.")
				name := func(m []byte) []byte { return m[wire.HeaderLen:][:34] }
				spelled := map[string]bool{}
				for i := range 10 {
					r, err := p.Exchange(t.Context(), q, nil)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(name(r), name(q)) {
						t.Errorf("the answer is for %q, want %q", name(r), name(q))
					}
					spelled[string(name(s.Queries()[i].Raw))] = true
				}
				if mixed := len(spelled) > 1; mixed != tt.mixed || !mixed && !spelled[string(name(q))] {
					t.Errorf("sent in %d spellings, mixed should be %v", len(spelled), tt.mixed)
				}
			})
		})
	}
}
