// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestTargetString(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		target config.Target
		want   string
	}{
		{name: "IPv4", target: config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")}, want: "192.0.2.1"},
		{name: "IPv4 and port", target: config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:54")}, want: "192.0.2.1:54"},
		{name: "IPv6", target: config.Target{Addr: netip.MustParseAddrPort("[2001:db8::1]:53")}, want: "2001:db8::1"},
		{name: "IPv6 and port", target: config.Target{Addr: netip.MustParseAddrPort("[2001:db8::1]:54")}, want: "[2001:db8::1]:54"},
		{
			name: "TCP", target: config.Target{Kind: config.TCP, Addr: netip.MustParseAddrPort("[2001:db8::1]:53")},
			want: "tcp://2001:db8::1",
		},
		{
			name: "TCP and port", target: config.Target{Kind: config.TCP, Addr: netip.MustParseAddrPort("192.0.2.1:54")},
			want: "tcp://192.0.2.1:54",
		},
		{
			name: "TLS", target: config.Target{Kind: config.TLS, Addr: netip.MustParseAddrPort("192.0.2.1:853")},
			want: "tls://192.0.2.1",
		},
		{
			name:   "TLS, port and name",
			target: config.Target{Kind: config.TLS, Addr: netip.MustParseAddrPort("[2001:db8::1]:53"), Name: "dns.example"},
			want:   "tls://[2001:db8::1]:53#dns.example",
		},
		{
			name: "HTTPS", target: config.Target{Kind: config.HTTPS, Addr: netip.MustParseAddrPort("192.0.2.1:443"), Path: "/dns-query"},
			want: "https://192.0.2.1",
		},
		{
			name:   "HTTPS, path and name",
			target: config.Target{Kind: config.HTTPS, Addr: netip.MustParseAddrPort("[2001:db8::1]:443"), Path: "/", Name: "dns.example"},
			want:   "https://[2001:db8::1]/#dns.example",
		},
		{
			name:   "HTTPS and port",
			target: config.Target{Kind: config.HTTPS, Addr: netip.MustParseAddrPort("[2001:db8::1]:8443"), Path: "/q"},
			want:   "https://[2001:db8::1]:8443/q",
		},
		{
			name:   "HTTPS by a host name",
			target: config.Target{Kind: config.HTTPS, Addr: netip.AddrPortFrom(netip.Addr{}, 443), Path: "/dns-query", Name: "dns.example"},
			want:   "https://dns.example",
		},
		{
			name:   "HTTPS by a host name, port and path",
			target: config.Target{Kind: config.HTTPS, Addr: netip.AddrPortFrom(netip.Addr{}, 8443), Path: "/a%20b", Name: "dns.example"},
			want:   "https://dns.example:8443/a%20b",
		},
		{name: "resolv.conf", target: config.Target{Kind: config.ResolvConf, Path: "/etc/resolv.conf"}, want: "/etc/resolv.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			same(t, "String()", tt.want, tt.target.String())
			roundTrip(t, with(func(c *config.Config) {
				c.Forward[0].To = []config.Target{tt.target}
				if tt.target.Kind == config.HTTPS && !tt.target.Addr.Addr().IsValid() {
					c.Forward[0].Bootstrap = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
				}
			}), config.Agent)
		})
	}
}
