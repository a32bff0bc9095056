// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// AD is kept from upstreams over TLS and HTTPS, and from others only if configured.
func TestTrustAD(t *testing.T) {
	t.Parallel()
	authentic := func(truncate bool) upstreamtest.Script {
		return upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
			r := upstreamtest.Forged(q)
			r[3] |= 0x20
			if truncate {
				r[2] |= 0x02
			}
			return r
		}}})
	}
	tests := []struct {
		name, network string
		truncated     bool
		trust, want   bool
	}{
		{name: "UDP", network: "udp"},
		{name: "TCP after UDP", network: "udp", truncated: true},
		{name: "TCP", network: "tcp"},
		{name: "TLS", network: "tls", want: true},
		{name: "HTTPS", network: "https", want: true},
		{name: "UDP, trusted", network: "udp", trust: true, want: true},
		{name: "TCP, trusted", network: "tcp", trust: true, want: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(upstreamtest.By(authentic(tt.truncated), authentic(false)))
				to := target(tt.network, addrA)
				if tt.network == "tls" || tt.network == "https" {
					authority := upstreamtest.NewAuthority(t, time.Now())
					s.Secure(authority.Issue(t, time.Now().Add(time.Hour), "dns.example"))
					to.Name, to.CAFile = "dns.example", filepath.Join(t.TempDir(), "ca.pem")
					authority.Trust(t, to.CAFile)
				}
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{to}, Dial: upstreamtest.Network{addrA: s}.Dial, TrustAD: tt.trust,
				})
				run(t, p)
				r, err := exchange(p, upstreamtest.Question(t, "www.example."), time.Hour)
				assert.NoError(t, err)
				assert.Equal(t, "AD", tt.want, r[3]&0x20 != 0)
			})
		})
	}
}
