// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package admin

import (
	"errors"
	"net/netip"
)

// setFreeBind allows a socket to bind an address that no link has.
func setFreeBind(int, netip.Addr) error { return errors.ErrUnsupported }
