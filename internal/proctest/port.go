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

// Ports lie below the kernel's ephemeral range. Otherwise a client socket of a load could take a port before its
// server starts, or while the server is down.
const (
	firstPort  = 10000
	ports      = 22000
	portsTried = 1000
)

// ReservePort returns a port of 127.0.0.1 that is free for UDP and TCP. It never returns a port twice, neither in
// this process nor in another running process that reserves ports.
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

// reserve claims a port and checks that it is free. The claim is an abstract unix socket with the port in its name:
// one process of a network namespace can bind it, and the kernel releases it when that process ends. The socket keeps
// its network namespace alive, so reserve ports outside of short-lived namespaces.
func reserve(ctx context.Context, addr netip.AddrPort) error {
	claim, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Bind(claim, &unix.SockaddrUnix{Name: fmt.Sprintf("@node-cache-test-port-%d", addr.Port())})
	if err == nil {
		// Between fork and exec a child has this process's sockets.
		syscall.ForkLock.RLock()
		err = bindable(ctx, addr.String())
		syscall.ForkLock.RUnlock()
	}
	if err != nil {
		return errors.Join(err, unix.Close(claim))
	}
	return nil
}

// bindable binds an address over UDP and TCP and closes both sockets.
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

// FreeAddr calls [ReservePort] and fails the test on an error.
func FreeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	addr, err := ReservePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
