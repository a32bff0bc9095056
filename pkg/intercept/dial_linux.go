// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// dialMarked connects to addr from that same address, over a socket with the agent's
// mark, whose packets no rule redirects.
func dialMarked(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: setMark}
	from := netip.AddrPortFrom(addr.Addr(), 0)
	switch network {
	case "udp":
		return d.DialUDP(ctx, network, from, addr)
	case "tcp":
		return d.DialTCP(ctx, network, from, addr)
	}
	return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
}

func setMark(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, rules.Mark)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("setting SO_MARK (needs the capability NET_ADMIN): %w", err)
	}
	return nil
}
