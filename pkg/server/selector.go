// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"net/netip"
)

// errNoSelector says that the kernel refuses what selectOwn asks for.
var errNoSelector = errors.New("no socket selector")

// SelectOwn has the kernel deal queries among the server's own sockets only, whatever
// other sockets with SO_REUSEPORT share the address. A process with such a socket can
// undo it. It counts on Listen, by which the own sockets are the first of the address.
// A server that gave its sockets leaves that to the process that has them, and maybe more.
func (u *UDP) SelectOwn() error {
	if u.given.is() {
		return nil
	}
	u.selecting.Lock()
	defer u.selecting.Unlock()
	own := u.sockets.all()
	return control(own[0].raw, func(fd int) error { return selectOwn(fd, len(own)) })
}

// SelectOwn has the kernel give sessions to the server's own socket only, see that of UDP.
func (t *TCP) SelectOwn() error {
	raw := t.Raw()
	if raw == nil || t.given.is() {
		return nil
	}
	return control(raw, func(fd int) error { return selectOwn(fd, 1) })
}

// warnUnselected logs why a server goes on without a selector, unless err is nil.
func warnUnselected(log *slog.Logger, network string, addr netip.AddrPort, err error) {
	if err != nil {
		log.Warn("socket selector refused: other processes may share the port", "network", network, "addr", addr, "err", err)
	}
}
