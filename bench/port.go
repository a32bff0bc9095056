// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// A portFinder hands out ports in rising order, each once.
type portFinder struct {
	next int
}

// free returns a port that is free for UDP and TCP on the loopback address.
func (f *portFinder) free(ctx context.Context) (int, error) {
	for range 1000 {
		port := f.next
		f.next++
		if bindable(ctx, port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("looking for a free port: none in the 1000 below %d", f.next)
}

// bindable opens a port both ways and closes it again.
func bindable(ctx context.Context, port int) error {
	var lc net.ListenConfig
	address := fmt.Sprintf("%s:%d", loopback, port)
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
