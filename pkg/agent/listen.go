// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"syscall"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/status"
)

// listen opens the DNS sockets or adopts those of a predecessor. After an error none stays open.
func (a *Agent) listen(ctx context.Context, cfg *config.Config) (err error) {
	defer func() {
		if err != nil {
			a.closeDNS()
		}
	}()
	addrs := make([]netip.AddrPort, len(a.udp))
	for i, ip := range cfg.Listen.Addresses {
		addrs[i] = netip.AddrPortFrom(ip, cfg.Listen.Port)
	}
	a.handover.receiveSockets(ctx, addrs)
	for i, addr := range addrs {
		if err := a.openUDP(ctx, a.udp[i], addr); err != nil {
			return err
		}
		if err := a.openTCP(ctx, a.tcp[i], addr); err != nil {
			return err
		}
	}
	return nil
}

// openUDP makes u read adopted sockets or its own.
func (a *Agent) openUDP(ctx context.Context, u *server.UDP, addr netip.AddrPort) error {
	if files := a.handover.adopt(handover.KindUDP, addr); len(files) > 0 {
		return u.Adopt(files)
	}
	return u.Listen(ctx)
}

// openTCP makes t accept from an adopted socket or its own.
func (a *Agent) openTCP(ctx context.Context, t *server.TCP, addr netip.AddrPort) error {
	files := a.handover.adopt(handover.KindTCP, addr)
	if len(files) == 1 {
		return t.Adopt(files[0])
	}
	closeFiles(files)
	return t.Listen(ctx)
}

// openAdmin makes the admin server accept from an adopted socket or its own, and from its unix socket.
func (a *Agent) openAdmin(ctx context.Context, addr netip.AddrPort) error {
	files := a.handover.adopt(handover.KindAdmin, addr)
	if len(files) == 1 {
		if err := a.admin.Adopt(files[0]); err != nil {
			return err
		}
	} else {
		closeFiles(files)
	}
	return a.admin.Listen(ctx)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (a *Agent) closeDNS() {
	for i := range a.udp {
		a.udp[i].Close()
		a.tcp[i].Close()
	}
}

// listenProblem adds a hint to an error of opening a socket.
func listenProblem(err error, port uint16) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "another program uses the port: find it with `ss -lnptu`, or set another listen.port or listen.addresses"
	case errors.Is(err, syscall.EACCES) && port < 1024:
		hint = "ports below 1024 need root or the capability NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = "this host forbids the socket: check its seccomp, LSM, and cgroup rules"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "no interface of this host has the address; list the addresses with `ip address`"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		hint = "this host does not support that IP family"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		hint = "raise the limit of open files (ulimit -n)"
	default:
		return err
	}
	return &status.HintError{Err: err, Hint: hint}
}

// adminProblem adds a hint to an error of the admin server's sockets.
func adminProblem(err error, cfg config.Admin) error {
	switch {
	case cfg.Socket == "":
	case errors.Is(err, admin.ErrSocketTaken):
		return &status.HintError{Err: err, Hint: "another agent uses this admin.socket: set a different path for each agent"}
	case errors.Is(err, fs.ErrNotExist):
		return &status.HintError{Err: err, Hint: "the folder of admin.socket does not exist: create it, or set another path"}
	case errors.Is(err, admin.ErrNoSocket):
		return &status.HintError{Err: err, Hint: "admin.socket exists and is no socket: remove that file, or set another path"}
	}
	return listenProblem(err, cfg.Address.Port())
}
