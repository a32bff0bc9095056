// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"net/netip"
)

// errNoSelector says that the kernel refuses what selectOwn asks for.
var errNoSelector = errors.New("no socket selector")

// AttachSelector has the kernel deal queries among the server's own sockets only, whatever
// other sockets with SO_REUSEPORT share the address. A process with such a socket can
// undo it. It counts on Listen, by which the own sockets are the first of the address.
// A server that gave its sockets leaves that to the process that has them, and maybe more.
func (u *UDP) AttachSelector() error {
	if u.handover.started() {
		return nil
	}
	u.selectorMu.Lock()
	defer u.selectorMu.Unlock()
	own := u.sockets.all()
	return control(own[0].raw, func(fd int) error { return attachSelector(fd, len(own)) })
}

// AttachSelector has the kernel give sessions to the server's own socket only, see that of UDP.
func (t *TCP) AttachSelector() error {
	raw := t.RawConn()
	if raw == nil || t.handover.started() {
		return nil
	}
	return control(raw, func(fd int) error { return attachSelector(fd, 1) })
}

// warnNoSelector logs why a server goes on without a selector, unless err is nil.
func warnNoSelector(log *slog.Logger, network string, addr netip.AddrPort, err error) {
	if err != nil {
		log.Warn("socket selector refused: other processes may share the port", "network", network, "addr", addr, "err", err)
	}
}
