// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"net/netip"
)

// errNoSelector reports that the kernel rejects attachSelector.
var errNoSelector = errors.New("no socket selector")

// AttachSelector makes the kernel distribute queries among the server's own sockets only, even if
// sockets of other processes share the address with SO_REUSEPORT. A process with such a socket can
// replace the selector. It requires that the own sockets are the first of the address, which Listen
// ensures. After a handover it does nothing: the other process attaches its own.
func (u *UDP) AttachSelector() error {
	if u.handover.started() {
		return nil
	}
	u.selectorMu.Lock()
	defer u.selectorMu.Unlock()
	own := u.sockets.all()
	return control(own[0].raw, func(fd int) error { return attachSelector(fd, len(own)) })
}

// AttachSelector makes the kernel pass connections to the server's own socket only, see
// [UDP.AttachSelector].
func (t *TCP) AttachSelector() error {
	raw := t.RawConn()
	if raw == nil || t.handover.started() {
		return nil
	}
	return control(raw, func(fd int) error { return attachSelector(fd, 1) })
}

// warnNoSelector logs that a server runs without a selector, unless err is nil.
func warnNoSelector(log *slog.Logger, network string, addr netip.AddrPort, err error) {
	if err != nil {
		log.Warn("socket selector refused", "network", network, "addr", addr, "err", err)
	}
}
