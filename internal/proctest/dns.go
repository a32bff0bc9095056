// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A DNSServer answers over UDP and TCP at one address. Its sessions have no limit.
type DNSServer struct {
	udp, tcp *dns.Server
	group    sync.WaitGroup
}

// ServeDNS starts a server in the network namespace of the calling thread. The caller closes it.
func ServeDNS(lc *net.ListenConfig, addr netip.AddrPort, handler dns.Handler) (*DNSServer, error) {
	udp, err := lc.ListenPacket(context.Background(), "udp", addr.String())
	if err != nil {
		return nil, err
	}
	tcp, err := lc.Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return nil, errors.Join(err, udp.Close())
	}
	s := &DNSServer{udp: &dns.Server{PacketConn: udp, UDPSize: 4096}, tcp: &dns.Server{Listener: tcp, MaxTCPQueries: -1}}
	for _, server := range []*dns.Server{s.udp, s.tcp} {
		started := make(chan struct{})
		server.Handler, server.NotifyStartedFunc = handler, func() { close(started) }
		server.ReadTimeout, server.IdleTimeout = time.Hour, func() time.Duration { return time.Hour }
		s.group.Go(func() { _ = server.ActivateAndServe() }) // until it is shut down
		<-started
	}
	return s, nil
}

// Close ends the server and its sessions.
func (s *DNSServer) Close() {
	for _, server := range []*dns.Server{s.udp, s.tcp} {
		_ = server.Shutdown() // it runs
	}
	s.group.Wait()
}

// StartDNS serves on a free loopback address for a test.
func StartDNS(t *testing.T, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	addr := FreeAddr(t)
	s, err := ServeDNS(&net.ListenConfig{}, addr, handler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return addr
}
