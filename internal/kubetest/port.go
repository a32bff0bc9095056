// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
)

// Ports are taken from below the range that kernels give to outgoing connections, so that the port of a server that
// is down for a while is not taken by one.
const (
	firstPort = 20000
	lastPort  = 32767
)

// freePort returns a loopback address whose port is free for UDP and TCP at this moment.
func freePort(ctx context.Context) (netip.AddrPort, error) {
	var last error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		if last = bindable(ctx, address.String()); last == nil {
			return address, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("looking for a free port: %w", last)
}

// bindable opens an address both ways and closes it again.
func bindable(ctx context.Context, address string) error {
	var lc net.ListenConfig
	udp, err := lc.ListenPacket(ctx, "udp4", address)
	if err != nil {
		return err
	}
	tcp, err := lc.Listen(ctx, "tcp4", address)
	if err != nil {
		return errors.Join(err, udp.Close())
	}
	return errors.Join(udp.Close(), tcp.Close())
}
