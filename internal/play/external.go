// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

const (
	dnsPort     = 53
	externalTTL = 30 // seconds
)

// serveExternal starts a server on a host that stands for all DNS beyond the cluster: every name has addresses, but for those
// below "nothing.", which do not exist. It logs each query, so that one sees what leaves the node.
func serveExternal(h *nodetest.Host, logFile string) (s *proctest.DNSServer, err error) {
	log, err := os.Create(logFile) // closed with the program
	if err != nil {
		return nil, fmt.Errorf("making a log: %w", err)
	}
	handler := logged(slog.New(slog.NewTextHandler(log, nil)))
	err = h.Do(func() error {
		s, err = proctest.ServeDNS(&net.ListenConfig{}, netip.AddrPortFrom(h.IPv4, dnsPort), handler)
		return err
	})
	return s, err
}

// logged answers queries and logs them.
func logged(log *slog.Logger) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if len(q.Question) == 1 {
			log.Info("query", "name", q.Question[0].Name, "type", dns.TypeToString[q.Question[0].Qtype],
				"from", w.RemoteAddr().String(), "network", w.RemoteAddr().Network())
		}
		_ = w.WriteMsg(answer(q)) // a client that has gone meanwhile needs no answer
	})
}

// answer is the external DNS's reply to a query.
func answer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	if len(q.Question) != 1 {
		return m.SetRcode(q, dns.RcodeFormatError)
	}
	asked := q.Question[0]
	header := dns.RR_Header{Name: asked.Name, Rrtype: asked.Qtype, Class: dns.ClassINET, Ttl: externalTTL}
	nothing := strings.HasSuffix("."+strings.ToLower(asked.Name), ".nothing.")
	switch {
	case nothing:
		m.SetRcode(q, dns.RcodeNameError)
	case asked.Qtype == dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, nameHash(asked.Name))}}
	case asked.Qtype == dns.TypeAAAA:
		ip := net.ParseIP("2001:db8::")
		ip[15] = nameHash(asked.Name)
		m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: ip}}
	case asked.Qtype == dns.TypeTXT:
		m.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{"from the external DNS"}}}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: externalTTL},
			Ns:  "external.", Mbox: "hostmaster.external.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: externalTTL,
		}}
	}
	return m
}

// nameHash makes a number of a name, the same for each spelling.
func nameHash(name string) byte {
	s := byte(0)
	for _, c := range []byte(strings.ToLower(name)) {
		s = s*31 + c
	}
	return s
}
