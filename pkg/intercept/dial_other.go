// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package intercept

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// dialMarked fails: interception needs Linux.
func dialMarked(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
