// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"
)

// InternetZone is the zone whose names the Internet's DNS knows, all of them. It denies every other name.
const InternetZone = "example.com."

// An Internet is a DNS server that stands for the Internet's, at [InternetDNS]. A name of [InternetZone] has the address
// 198.51.100.7, an IPv6 address and a text; one that begins with long has so many texts that they need TCP.
type Internet struct {
	udp, tcp *dns.Server
	group    sync.WaitGroup
	queries  atomic.Uint64
}

// Queries is how many have come.
func (i *Internet) Queries() uint64 { return i.queries.Load() }

// serveInternet starts the server on a machine that has the address.
func serveInternet(ctx context.Context, m *Machine) (*Internet, error) {
	i := &Internet{}
	addr := InternetDNS + ":53"
	err := m.Do(func() error {
		var lc net.ListenConfig
		packets, err := lc.ListenPacket(ctx, "udp", addr)
		if err != nil {
			return err
		}
		sessions, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return errors.Join(err, packets.Close())
		}
		i.udp = &dns.Server{PacketConn: packets, Handler: i}
		i.tcp = &dns.Server{Listener: sessions, Handler: i}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("serving the Internet's DNS: %w", err)
	}
	for _, s := range []*dns.Server{i.udp, i.tcp} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		i.group.Go(func() { _ = s.ActivateAndServe() }) // until it is shut down
		<-started
	}
	return i, nil
}

// Close ends the server.
func (i *Internet) Close() {
	for _, s := range []*dns.Server{i.udp, i.tcp} {
		_ = s.Shutdown() // it runs
	}
	i.group.Wait()
}

// ServeDNS implements [dns.Handler].
func (i *Internet) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	i.queries.Add(1)
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	name := strings.ToLower(q.Question[0].Name)
	head := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: 30}
	zone := InternetZone
	switch head.Rrtype = q.Question[0].Qtype; {
	case !dns.IsSubDomain(InternetZone, name):
		m.Rcode, zone = dns.RcodeNameError, "."
	case head.Rrtype == dns.TypeA:
		m.Answer = append(m.Answer, &dns.A{Hdr: head, A: net.IPv4(198, 51, 100, 7)})
	case head.Rrtype == dns.TypeAAAA:
		m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: net.ParseIP("2001:db8::7")})
	case head.Rrtype == dns.TypeTXT:
		texts := 1
		if strings.HasPrefix(name, "long") {
			texts = 20
		}
		for n := range texts {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: head, Txt: []string{fmt.Sprintf("%d %s", n, strings.Repeat("x", 200))}})
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, &dns.SOA{
			Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5},
			Ns:  "ns." + InternetZone, Mbox: "root." + InternetZone, Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 5,
		})
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
			m.SetEdns0(1232, opt.Do())
		}
		m.Truncate(size)
	}
	_ = w.WriteMsg(m) // who asked may have gone
}
