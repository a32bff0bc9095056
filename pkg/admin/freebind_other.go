// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package admin

import (
	"errors"
	"net/netip"
)

// bindFreely lets a socket be bound to an address that no link has.
func bindFreely(int, netip.Addr) error { return errors.ErrUnsupported }
