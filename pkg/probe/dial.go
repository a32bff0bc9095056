// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net"
	"net/netip"
	"syscall"
)

// dialer is what Config.Dial is by default.
func dialer(mark uint32) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	d := &net.Dialer{}
	if mark != 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error { return markSocket(raw, mark) }
	}
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, network, addr.String())
	}
}
