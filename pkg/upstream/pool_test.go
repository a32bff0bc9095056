// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
)

func TestNewRejects(t *testing.T) {
	t.Parallel()
	self := func(addr netip.AddrPort) bool { return addr == addrA }
	tests := []struct {
		name        string
		targets     []upstream.Target
		follow      *upstream.Endpoints
		connections int
		want        string
	}{
		{
			name: "too many connections", targets: []upstream.Target{target("tcp", addrB)}, connections: 17,
			want: "connections 17: not between 1 and 16",
		},
		{
			name: "negative connections", targets: []upstream.Target{target("tcp", addrB)}, connections: -1,
			want: "connections -1: not between 1 and 16",
		},
		{
			name: "both", targets: []upstream.Target{target("tcp", addrB)}, follow: new(upstream.Endpoints),
			want: "endpoints together with targets: unsupported operation",
		},
		{name: "only ourselves", targets: []upstream.Target{target("udp", addrA)}, want: "no usable upstream"},
		{name: "network", targets: []upstream.Target{target("quic", addrB)}, want: `target 0: network "quic": unsupported operation`},
		{
			name:    "address",
			targets: []upstream.Target{target("udp", addrB), target("udp", netip.AddrPort{})},
			want:    `target 1: address "invalid AddrPort": no usable upstream`,
		},
		{
			name: "file", targets: []upstream.Target{{ResolvConf: "testdata/none.conf"}},
			want: "target 0: open testdata/none.conf: no such file or directory",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := upstream.New(upstream.Config{
				Targets: tt.targets, Self: self, Endpoints: tt.follow, Connections: tt.connections,
			})
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// Duplicate entries are one upstream, and own addresses are excluded.
func TestNewDropsUnusable(t *testing.T) {
	t.Parallel()
	log, lines := logger()
	p := newPool(t, upstream.Config{
		Targets: []upstream.Target{target("udp", addrB), target("udp", addrA), target("tcp", addrB), target("udp", addrB)},
		Self:    func(addr netip.AddrPort) bool { return addr == addrA },
		Log:     log,
	})
	assert.Same(t, "servers", []string{"udp 192.0.2.2:53", "tcp 192.0.2.2:53"}, servers(p))
	assert.Same(t, "log", []string{"WARN upstream excluded reason=own address upstream=192.0.2.1:53"}, lines())
}
