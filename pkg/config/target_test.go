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
		{name: "resolv.conf", target: config.Target{Kind: config.ResolvConf, Path: "/etc/resolv.conf"}, want: "/etc/resolv.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.target.String(); got != tt.want {
				t.Errorf("String() = %q, want %q", got, tt.want)
			}
			roundTrip(t, with(func(c *config.Config) { c.Forward[0].To = []config.Target{tt.target} }), config.Agent)
		})
	}
}
