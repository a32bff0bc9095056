// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Ports are taken from below the range that kernels give to clients: one of the many
// sockets of a load could otherwise take a port before its server does, or while that
// one is down.
const (
	firstPort  = 10000
	ports      = 22000
	portsTried = 1000
)

// ReservePort finds a port of 127.0.0.1 that is free for UDP and for TCP. It gives no
// port twice, in this process or in another one that reserves ports and still runs:
// between the look at a port and its server's start there is always a moment.
func ReservePort(ctx context.Context) (netip.AddrPort, error) {
	var last error
	for range portsTried {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), firstPort+uint16(rand.IntN(ports)))
		if last = reserve(ctx, addr); last == nil {
			return addr, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("looking for a free port, %d times: %w", portsTried, last)
}

// reserve claims a port and looks whether anybody else has it. The claim is an abstract
// unix socket with the port in its name: only one process of a network namespace can
// have it, and nobody closes it but the kernel, when that process ends. (It keeps a
// namespace alive in which it is made: ports are reserved outside of those.)
func reserve(ctx context.Context, addr netip.AddrPort) error {
	claim, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Bind(claim, &unix.SockaddrUnix{Name: fmt.Sprintf("@node-cache-test-port-%d", addr.Port())})
	if err == nil {
		// A child has this process's sockets between its fork and its exec.
		syscall.ForkLock.RLock()
		err = bindable(ctx, addr.String())
		syscall.ForkLock.RUnlock()
	}
	if err != nil {
		return errors.Join(err, unix.Close(claim))
	}
	return nil
}

// bindable opens an address both ways and closes it again.
func bindable(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	udp, err := lc.ListenPacket(ctx, "udp4", addr)
	if err != nil {
		return err
	}
	tcp, err := lc.Listen(ctx, "tcp4", addr)
	if err != nil {
		return errors.Join(err, udp.Close())
	}
	return errors.Join(udp.Close(), tcp.Close())
}

// FreeAddr is [ReservePort] for a test, which it ends on an error.
func FreeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	addr, err := ReservePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
