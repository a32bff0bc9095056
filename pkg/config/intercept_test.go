// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestParseNode(t *testing.T) {
	t.Parallel()
	own := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::53")}
	const (
		listen   = "listen: {addresses: [169.254.20.10, 'fd00::53']}\n"
		onPort53 = "listen: {addresses: [169.254.20.10, 'fd00::53'], port: 53}\n"
	)
	for _, tt := range []struct {
		name string
		role config.Role
		text string
		want func(*config.Config) // changes the default of the role
	}{
		{
			name: "every key, link-local", text: listen + "interface: {manage: true, name: Dns_0.a-b, kind: bridge}\n" +
				"intercept: {manage: true, mode: link-local, backend: nftables, lease: 1500ms, " +
				"fallback: [10.0.0.1, '10.0.0.1:54', '[fd00::1]:53', 'fd00::2'], onExit: remove, services: []}",
			want: func(c *config.Config) {
				c.Listen.Addresses = own
				c.Interface = config.Interface{Manage: true, Name: "Dns_0.a-b", Kind: config.LinkBridge}
				c.Intercept = config.Intercept{
					Manage: true, Mode: config.ModeLinkLocal, Backend: config.BackendNftables, Lease: 1500 * time.Millisecond, OnExit: config.ExitRemove,
					Fallback: config.Fallback{Addresses: []netip.AddrPort{
						netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.1:54"),
						netip.MustParseAddrPort("[fd00::1]:53"), netip.MustParseAddrPort("[fd00::2]:53"),
					}},
				}
			},
		},
		{
			name: "every key, transparent", text: onPort53 + "interface: {manage: true, name: abcdefghijklmno, kind: dummy}\n" +
				"intercept: {manage: true, mode: transparent, backend: iptables, lease: 1m, fallback: none, onExit: remove, services: ['fd00:96::a', 10.96.0.10]}",
			want: func(c *config.Config) {
				c.Listen.Addresses, c.Listen.Port = own, 53
				c.Interface = config.Interface{Manage: true, Name: "abcdefghijklmno", Kind: config.LinkDummy}
				c.Intercept = config.Intercept{
					Manage: true, Mode: config.ModeTransparent, Backend: config.BackendIptables, Lease: time.Minute, OnExit: config.ExitRemove,
					Services: []netip.Addr{netip.MustParseAddr("fd00:96::a"), netip.MustParseAddr("10.96.0.10")},
				}
			},
		},
		{
			name: "transparent, the service of the central resolver",
			text: onPort53 + "intercept: {manage: true, mode: transparent, lease: 1s}\ncluster: {central: {service: kube-system/kube-dns}}",
			want: func(c *config.Config) {
				c.Listen.Addresses, c.Listen.Port = own, 53
				c.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
				c.Intercept.Manage, c.Intercept.Mode, c.Intercept.Lease = true, config.ModeTransparent, time.Second
			},
		},
		{
			name: "link-local, the central resolver's addresses",
			text: listen + "intercept: {manage: true, fallback: central, onExit: fallback}\ncluster: {central: {addresses: [10.0.0.1]}}",
			want: func(c *config.Config) {
				c.Listen.Addresses = own
				c.Cluster.Central.Addresses = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")}
				c.Intercept.Manage, c.Intercept.OnExit = true, config.ExitFallback
			},
		},
		{
			name: "rules on the loopback link", text: listen + "interface: {manage: true, kind: lo}\nintercept: {manage: true, fallback: none}",
			want: func(c *config.Config) {
				c.Listen.Addresses = own
				c.Interface.Manage, c.Interface.Kind = true, config.LinkLoopback
				c.Intercept.Manage, c.Intercept.Fallback = true, config.Fallback{}
			},
		},
		{
			name: "not managed, with any address", text: "listen: {addresses: ['::']}\nintercept: {mode: transparent, lease: 5s}\ninterface: {kind: dummy}",
			want: func(c *config.Config) {
				c.Listen.Addresses = []netip.Addr{netip.IPv6Unspecified()}
				c.Intercept.Mode, c.Intercept.Lease = config.ModeTransparent, 5*time.Second
				c.Interface.Kind = config.LinkDummy
			},
		},
		{
			name: "a resolver's defaults, written out", role: config.Resolver,
			text: "interface: {manage: false, name: nodelocaldns, kind: auto}\nintercept: {manage: false, fallback: central, lease: 3s}",
			want: func(*config.Config) {},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := config.Default(tt.role)
			tt.want(&want)
			got, err := config.Parse([]byte(tt.text), tt.role)
			must(t, err)
			same(t, "Parse", want, got, plain())
			roundTrip(t, got, tt.role)
		})
	}
}

func TestExit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode, set, want string
	}{
		{config.ModeLinkLocal, config.ExitAuto, config.ExitFallback},
		{config.ModeLinkLocal, config.ExitRemove, config.ExitRemove},
		{config.ModeLinkLocal, config.ExitFallback, config.ExitFallback},
		{config.ModeTransparent, config.ExitAuto, config.ExitRemove},
		{config.ModeTransparent, config.ExitRemove, config.ExitRemove},
	} {
		if got := (config.Intercept{Mode: tt.mode, OnExit: tt.set}).Exit(); got != tt.want {
			t.Errorf("mode %s, onExit %s: %s at the end, want %s", tt.mode, tt.set, got, tt.want)
		}
	}
}
