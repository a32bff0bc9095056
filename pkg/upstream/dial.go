// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A dialer is the default of Config.Dial.
type dialer struct {
	mark   uint32 // SO_MARK of the sockets; 0: none
	log    *slog.Logger
	warned atomic.Bool // that the mark could not be set
}

// dial opens a socket that is connected to addr. The kernel chooses the source port.
func (d *dialer) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	switch network {
	case "udp":
		// No Control function here: with one, package net formats the address of every socket, a tenth of the cost of
		// a miss. The mark is set after connect, which is before the first packet.
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

// setMark sets the mark if it can, and logs the first failure. A query without the mark is better than none: a
// process that may not set marks has not installed rules for them either, as both need NET_ADMIN.
func (d *dialer) setMark(ctx context.Context, raw syscall.RawConn, err error) {
	if err == nil {
		err = setSocketMark(raw, d.mark)
	}
	if err != nil && !d.warned.Swap(true) {
		d.log.ErrorContext(ctx, "cannot mark upstream sockets", "err", err)
	}
}

// setSocketMark sets SO_MARK on a socket.
func setSocketMark(raw syscall.RawConn, mark uint32) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
	switch {
	case err != nil:
		return fmt.Errorf("setting SO_MARK: %w", err)
	case errors.Is(failed, unix.EPERM):
		return fmt.Errorf("setting SO_MARK without the capability NET_ADMIN: %w", failed)
	case failed != nil:
		return fmt.Errorf("setting SO_MARK: %w", failed)
	}
	return nil
}

// rawTCP returns access to a TCP socket; nil: it is another connection, or closed.
func rawTCP(nc net.Conn) syscall.RawConn {
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// userTimeout is how long sent bytes may stay unacknowledged, in milliseconds (RFC 5482). It ends connections over a
// broken path soon; the kernel's default is a quarter of an hour.
const userTimeout = 3000

func setUserTimeout(raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("setting TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
