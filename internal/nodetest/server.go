// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept"
)

// A Server answers DNS over UDP and TCP. It answers a TXT query of any name and class with its own name, A and AAAA
// queries with an address derived from it, and all others with no data.
type Server struct {
	*proctest.DNSServer

	name               string
	paused             atomic.Bool
	udpCount, tcpCount atomic.Uint64
}

// Serve starts a server in a host. The address may be added later. The caller closes the server.
func Serve(h *Host, addr netip.AddrPort, name string) (*Server, error) {
	s := &Server{name: name}
	err := h.Do(func() (err error) {
		s.DNSServer, err = proctest.ServeDNS(&net.ListenConfig{Control: freeBind}, addr, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serving at %s of host %s: %w", addr, h.Name, err)
	}
	return s, nil
}

// freeBind allows a socket to bind an address that no link has yet.
func freeBind(network, _ string, c syscall.RawConn) error {
	level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
	if network[len(network)-1] == '6' {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), level, option, 1)
		enlarge(fd)
	})
	if err == nil {
		err = failed
	}
	return err
}

// enlarge enlarges a UDP socket's buffer, so that a busy test does not lose packets that the node has delivered.
func enlarge(fd uintptr) {
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
}

// Queries returns the number of queries received, without those by which an agent tests its fallback.
func (s *Server) Queries() (udp, tcp uint64) { return s.udpCount.Load(), s.tcpCount.Load() }

// Pause makes the server drop all queries, or answer again.
func (s *Server) Pause(on bool) { s.paused.Store(on) }

// ServeDNS implements [dns.Handler].
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	count := &s.udpCount
	if w.LocalAddr().Network() == "tcp" {
		count = &s.tcpCount
	}
	if !isTest(q) {
		count.Add(1)
	}
	if !s.paused.Load() {
		_ = w.WriteMsg(answer(q, s.name)) // the client may have gone
	}
}

// isTest reports whether an agent sent the query to test its fallback.
func isTest(q *dns.Msg) bool {
	self, name := intercept.TestNames("cluster.local.")
	return len(q.Question) == 1 && (q.Question[0].Name == self || q.Question[0].Name == name)
}
