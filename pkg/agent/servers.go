// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/certificate"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/memory"
	"github.com/nodecache/node-cache/pkg/node"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/server"
)

// sessionDrain is how long TCP sessions continue after a handover.
const sessionDrain = 30 * time.Second

// servers are the DNS servers of all listen addresses, and the admin server.
type servers struct {
	addrs       []netip.AddrPort // as configured
	udp         []*server.UDP
	tcp         []*server.TCP            // as many as udp, at the same addresses, and then as many over TLS, if that is configured
	certificate *certificate.Certificate // of those over TLS; nil: there are none
	foreign     *node.ForeignSockets
	admin       *admin.Server // nil: not configured
	tls         *secureAdmin  // of the admin server; nil: not configured
	log         *slog.Logger
}

// newServers makes the DNS servers of a configuration, with their share of the memory. They open nothing yet.
func newServers(cfg *config.Config, share *memory.Share, handler server.Handler, stateful server.Stateful, log *slog.Logger) (*servers, error) {
	s := &servers{log: log}
	freeBind := cfg.Interface.Manage // the address is added to the link after the sockets listen
	sessions, perClient := share.Sessions(&cfg.Limits)
	overTCP := server.TCPConfig{
		FreeBind: freeBind, Handler: handler, Stateful: stateful, Log: log,
		MaxSessions: sessions, MaxPerClient: perClient, MaxMemory: share.Held(),
		IdleTimeout: cfg.Limits.TCPIdle, DrainTimeout: cfg.Limits.Deadline + time.Second,
	}
	for _, ip := range cfg.Listen.Addresses {
		addr := netip.AddrPortFrom(ip, cfg.Listen.Port)
		udp, err := server.NewUDP(server.UDPConfig{
			Addr: addr, FreeBind: freeBind, Handler: handler, DrainTimeout: cfg.Limits.Deadline + time.Second, Log: log,
			Readers: share.Readers, ReceiveBuffer: share.Buffer(),
		})
		if err != nil {
			return nil, err
		}
		s.addrs, s.udp = append(s.addrs, addr), append(s.udp, udp)
	}
	if err := s.addTCP(overTCP, cfg.Listen.Addresses, cfg.Listen.Port); err != nil {
		return nil, err
	}
	s.foreign = &node.ForeignSockets{UDP: s.udp, TCP: s.tcp, Log: log}
	if cfg.Listen.Cert == "" {
		return s, nil
	}
	var err error
	if s.certificate, err = certificate.Load(cfg.Listen.Cert, cfg.Listen.Key, log); err != nil {
		return nil, &hint.Error{Err: fmt.Errorf("listen.tls: %w", err), Hint: "set a certificate and its key (PEM) that this user can read"}
	}
	overTCP.TLS = s.certificate.TLS()
	return s, s.addTCP(overTCP, cfg.Listen.Addresses, cfg.Listen.TLSPort)
}

// addTCP adds a server for each address.
func (s *servers) addTCP(cfg server.TCPConfig, addrs []netip.Addr, port uint16) error {
	for _, ip := range addrs {
		cfg.Addr = netip.AddrPortFrom(ip, port)
		tcp, err := server.NewTCP(cfg)
		if err != nil {
			return err
		}
		s.tcp = append(s.tcp, tcp)
	}
	return nil
}

// listenDNS opens the DNS sockets that adopt does not return from a predecessor. After an error no DNS socket stays open.
func (s *servers) listenDNS(ctx context.Context, adopt func(kind string, addr netip.AddrPort) []*os.File) (err error) {
	defer func() {
		if err != nil {
			s.closeDNS()
		}
	}()
	for i, addr := range s.addrs {
		if files := adopt(handover.KindUDP, addr); len(files) > 0 {
			err = s.udp[i].Adopt(files)
		} else {
			err = s.udp[i].Listen(ctx)
		}
		if err != nil {
			return err
		}
	}
	for _, t := range s.tcp {
		if file := onlyFile(adopt(handover.KindTCP, t.Addr())); file != nil {
			err = t.Adopt(file)
		} else {
			err = t.Listen(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listenAdmin makes the admin server, if there is one, accept from an adopted socket or its own, and from its unix socket.
func (s *servers) listenAdmin(ctx context.Context, cfg *config.Admin, adopt func(kind string, addr netip.AddrPort) []*os.File) error {
	if s.admin == nil {
		return nil
	}
	for _, addr := range []netip.AddrPort{cfg.Address, cfg.TLSAddress} {
		if !addr.IsValid() {
			continue
		}
		if file := onlyFile(adopt(handover.KindAdmin, addr)); file != nil {
			if err := s.admin.Adopt(addr, file); err != nil {
				return adminProblem(err, cfg)
			}
		}
	}
	return adminProblem(s.admin.Listen(ctx), cfg)
}

// onlyFile returns the file of a list of one. It closes the files of other lists.
func onlyFile(files []*os.File) *os.File {
	if len(files) == 1 {
		return files[0]
	}
	for _, f := range files {
		_ = f.Close()
	}
	return nil
}

// adminProblem adds a hint to an error of the admin server's sockets.
func adminProblem(err error, cfg *config.Admin) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("admin server: %w", err)
	switch {
	case cfg.Socket == "":
	case errors.Is(err, admin.ErrSocketTaken):
		return &hint.Error{Err: err, Hint: "another agent uses this admin.socket: set a different path for each agent"}
	case errors.Is(err, fs.ErrNotExist):
		return &hint.Error{Err: err, Hint: "the folder of admin.socket does not exist: create it, or set another path"}
	case errors.Is(err, admin.ErrNoSocket):
		return &hint.Error{Err: err, Hint: "admin.socket exists and is no socket: remove that file, or set another path"}
	}
	port := cfg.Address.Port()
	if of, ok := errors.AsType[*net.OpError](err); ok {
		if at, ok := of.Addr.(*net.TCPAddr); ok {
			port = at.AddrPort().Port()
		}
	}
	return listen.Problem(err, port)
}

func (s *servers) closeDNS() {
	for _, u := range s.udp {
		u.Close()
	}
	for _, t := range s.tcp {
		t.Close()
	}
}

// close closes the sockets of servers that do not run.
func (s *servers) close() {
	s.closeDNS()
	if s.admin != nil {
		s.admin.Close()
	}
}

// tasks returns the Run methods of the DNS servers, which read and answer queries.
func (s *servers) tasks() []func(context.Context) error {
	list := make([]func(context.Context) error, 0, len(s.udp)+len(s.tcp))
	for _, u := range s.udp {
		list = append(list, u.Run)
	}
	for _, t := range s.tcp {
		list = append(list, t.Run)
	}
	return list
}

// runCertificate follows the files of the certificate until ctx ends.
func (s *servers) runCertificate(ctx context.Context) {
	if s.certificate != nil {
		s.certificate.Run(ctx)
	}
}

// runAdmin runs the admin server, if there is one, until stop is called. An error of it does not end the agent; stop returns it.
func (s *servers) runAdmin(ctx context.Context) (stop func() error) {
	if s.admin == nil {
		return func() error { return nil }
	}
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.admin.Run(ctx) }() // joined by stop
	return func() error {
		end()
		return <-ended
	}
}

// longestBatch returns the longest time that a reader has spent on its current batch of queries.
func (s *servers) longestBatch() time.Duration {
	now, longest := time.Now(), time.Duration(0)
	for _, u := range s.udp {
		longest = max(longest, u.BusyFor(now))
	}
	return longest
}

// limitSessions bounds the TCP sessions by the configuration and by the memory.
func (s *servers) limitSessions(share *memory.Share, limits *config.Limits) {
	sessions, perClient := share.Sessions(limits)
	for _, t := range s.tcp {
		t.SetLimits(sessions, perClient, share.Held(), limits.TCPIdle)
	}
}

// addReaders opens the UDP sockets that the predecessor lacked, one for each missing reader. A failure is only logged.
func (s *servers) addReaders(ctx context.Context) {
	for _, u := range s.udp {
		if u.MissingReaders() == 0 {
			continue
		}
		err := s.foreign.Conflict(u)
		if err == nil {
			err = u.AddReaders(ctx)
		}
		if err != nil {
			s.log.WarnContext(ctx, "fewer readers than CPUs", "err", err)
		}
	}
}

// offers returns the sockets that this agent listens on.
func (s *servers) offers() (list []handover.Socket, _ error) {
	add := func(kind string, addr netip.AddrPort, raw syscall.RawConn) {
		list = append(list, handover.Socket{Listen: listenOf(kind, addr), Raw: raw})
	}
	for _, u := range s.udp {
		for _, raw := range u.RawConns() {
			add(handover.KindUDP, u.Addr(), raw)
		}
	}
	for _, t := range s.tcp {
		if raw := t.RawConn(); raw != nil {
			add(handover.KindTCP, t.Addr(), raw)
		}
	}
	if s.admin != nil {
		for addr, raw := range s.admin.Sockets() {
			add(handover.KindAdmin, addr, raw)
		}
	}
	return list, nil
}

func listenOf(kind string, addr netip.AddrPort) handover.Listen {
	return handover.Listen{Kind: kind, Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}
}

// handOver leaves the sockets of the claim to the successor. It returns once what was read from them is answered.
func (s *servers) handOver(ctx context.Context, claim handover.Claim, guard panics.Guard) {
	var quiet sync.WaitGroup
	start := func(name handover.Listen, handOver func()) {
		if !claim.Has(name) {
			return
		}
		quiet.Go(func() {
			_ = guard.Do(ctx, func() error {
				handOver()
				return nil
			})
		})
	}
	for _, u := range s.udp {
		start(listenOf(handover.KindUDP, u.Addr()), func() { u.HandOver(ctx) })
	}
	for _, t := range s.tcp {
		start(listenOf(handover.KindTCP, t.Addr()), func() { t.HandOver(ctx, sessionDrain) })
	}
	if s.admin != nil {
		// The claim need not name the admin address: the successor's may cover it. Admin clients want the agent that answers DNS queries.
		s.admin.Give()
	}
	quiet.Wait()
}
