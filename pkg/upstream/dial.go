// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// dial opens a socket that is connected to addr, from a port the kernel draws.
func dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: limitSilence}
	switch network {
	case "udp":
		return d.DialUDP(ctx, network, netip.AddrPort{}, addr)
	case "tcp":
		return d.DialTCP(ctx, network, netip.AddrPort{}, addr)
	}
	return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
}
