// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"testing"
)

// TestLocalClients checks which clients count as local for an address that the agent listens on.
func TestLocalClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		listen, client string
		want           bool
	}{
		{"169.254.20.10", "169.254.20.10", true},
		{"169.254.20.10", "127.0.0.1", true},
		{"169.254.20.10", "127.9.9.9", true},
		{"169.254.20.10", "::1", true},
		{"169.254.20.10", "::ffff:127.0.0.1", true},
		{"169.254.20.10", "::ffff:169.254.20.10", true},
		{"fe80::10", "fe80::10%eth0", true},
		{"169.254.20.10", "10.244.1.7", false},
		{"169.254.20.10", "0.0.0.0", false},
		{"fd00::10", "fd00::11", false},
		{"0.0.0.0", "127.0.0.1", true},
		{"0.0.0.0", "192.0.2.1", false}, // an address of documents, which no machine has
		{"0.0.0.0", "0.0.0.0", false},
		{"::", "2001:db8::1", false},
	} {
		if got := LocalClients([]netip.Addr{netip.MustParseAddr(tt.listen)})(netip.MustParseAddr(tt.client)); got != tt.want {
			t.Errorf("listening on %s, %s: %t, want %t", tt.listen, tt.client, got, tt.want)
		}
	}
	for _, own := range HostAddrs() {
		if !LocalClients([]netip.Addr{netip.IPv6Unspecified()})(own) {
			t.Errorf("listening on all addresses, %s is no client here", own)
		}
	}
}

// TestReceives checks which addresses lead to a listener of this host. A listener at 0.0.0.0 has no IPv6.
func TestReceives(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		listen, to string
		want       bool
	}{
		{"169.254.20.10", "169.254.20.10", true},
		{"169.254.20.10", "127.0.0.1", false},
		{"127.0.0.1", "0.0.0.0", true},
		{"::1", "::", true},
		{"0.0.0.0", "127.0.0.53", true},
		{"0.0.0.0", "::1", false},
		{"0.0.0.0", "::", false},
		{"::", "::1", true},
		{"::", "127.0.0.53", true},
		{"::", "192.0.2.1", false}, // an address of documents, which no machine has
	} {
		if got := Receives([]netip.Addr{netip.MustParseAddr(tt.listen)}, netip.MustParseAddr(tt.to)); got != tt.want {
			t.Errorf("listening on %s, to %s: %t, want %t", tt.listen, tt.to, got, tt.want)
		}
	}
}
