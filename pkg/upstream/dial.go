// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// A dialer is what Config.Dial is by default.
type dialer struct {
	mark   uint32 // of the sockets; 0: none
	log    *slog.Logger
	warned atomic.Bool // of a mark that could not be set
}

// dial opens a socket that is connected to addr, from a port the kernel draws.
func (d *dialer) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	switch network {
	case "udp":
		// Without a Control function: for it the net package writes out the
		// address of every socket, a tenth of what a miss costs. A mark that comes
		// after the connect is in time for the first packet.
		conn, err := new(net.Dialer).DialUDP(ctx, network, netip.AddrPort{}, addr)
		if err != nil {
			return nil, err
		}
		if d.mark != 0 {
			raw, err := conn.SyscallConn()
			d.setMark(ctx, raw, err)
		}
		return conn, nil
	case "tcp":
		nd := net.Dialer{ControlContext: func(ctx context.Context, _, _ string, raw syscall.RawConn) error {
			if d.mark != 0 {
				d.setMark(ctx, raw, nil)
			}
			return setUserTimeout(raw)
		}}
		return nd.DialTCP(ctx, network, netip.AddrPort{}, addr)
	}
	return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
}

// setMark marks a socket, unless it could not be had. A query without the mark is
// better than none: rules that act on the mark need the right that the mark needs,
// so where it is missing there are none of this process.
func (d *dialer) setMark(ctx context.Context, raw syscall.RawConn, err error) {
	if err == nil {
		err = setSocketMark(raw, d.mark)
	}
	if err != nil && !d.warned.Swap(true) {
		d.log.ErrorContext(ctx, "queries to upstreams carry no mark", "error", err)
	}
}
