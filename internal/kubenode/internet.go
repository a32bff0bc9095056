// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// InternetZone is the zone of all names in the Internet's DNS. It denies every other name.
const InternetZone = "example.com."

// All names of [InternetZone] have these addresses, whose reverse names lead to www in it.
const (
	InternetAddr  = "198.51.100.7"
	InternetAddr6 = "2001:db8::7"
)

// serveInternet starts a DNS server that stands for the Internet's, at an address of a machine. A name of [InternetZone] has an
// address of each family, a service at port 443 of www, and a text; one that begins with long has so many texts that they need TCP.
// While silent is set it answers nothing.
func serveInternet(m *Host, addr netip.Addr, silent *atomic.Bool) (s *proctest.DNSServer, err error) {
	answer := func(w dns.ResponseWriter, q *dns.Msg) {
		if !silent.Load() {
			answerInternet(w, q)
		}
	}
	err = m.Do(func() error {
		s, err = proctest.ServeDNS(&net.ListenConfig{}, netip.AddrPortFrom(addr, 53), dns.HandlerFunc(answer))
		return err
	})
	return s, err
}

// SilenceInternet has the Internet's DNS server answer nothing, or everything again.
func (c *Cluster) SilenceInternet(on bool) { c.silent.Store(on) }

// answerInternet implements [dns.HandlerFunc].
func answerInternet(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	m.Answer = records(q.Question[0])
	if len(m.Answer) == 0 {
		zone, name := InternetZone, strings.ToLower(q.Question[0].Name)
		if !dns.IsSubDomain(InternetZone, name) {
			zone = "."
			if reverse(name) == "" {
				m.Rcode = dns.RcodeNameError
			}
		}
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
	_ = w.WriteMsg(m) // the client may have gone
}

// records are the Internet's records for a question.
func records(q dns.Question) []dns.RR {
	head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 30}
	name := strings.ToLower(q.Name)
	if of := reverse(name); of != "" && q.Qtype == dns.TypePTR {
		return []dns.RR{&dns.PTR{Hdr: head, Ptr: of}}
	}
	if !dns.IsSubDomain(InternetZone, name) {
		return nil
	}
	switch q.Qtype {
	case dns.TypeA:
		return []dns.RR{&dns.A{Hdr: head, A: net.ParseIP(InternetAddr)}}
	case dns.TypeAAAA:
		return []dns.RR{&dns.AAAA{Hdr: head, AAAA: net.ParseIP(InternetAddr6)}}
	case dns.TypeSRV:
		return []dns.RR{&dns.SRV{Hdr: head, Priority: 1, Weight: 2, Port: 443, Target: "www." + InternetZone}}
	case dns.TypeTXT:
		return texts(head)
	default:
		return nil
	}
}

// texts are a name's texts.
func texts(head dns.RR_Header) []dns.RR {
	number := 1
	if strings.HasPrefix(strings.ToLower(head.Name), "long") {
		number = 20
	}
	all := make([]dns.RR, number)
	for n := range all {
		all[n] = &dns.TXT{Hdr: head, Txt: []string{fmt.Sprintf("%d %s", n, strings.Repeat("x", 200))}}
	}
	return all
}

// reverse is the name of the address that a reverse name is of, or empty: one in the zone, and one that specs of Kubernetes ask for.
func reverse(name string) string {
	for addr, of := range map[string]string{InternetAddr: "www." + InternetZone, InternetAddr6: "www." + InternetZone, "8.8.8.8": "dns.google."} {
		if is, err := dns.ReverseAddr(addr); err == nil && is == name {
			return of
		}
	}
	return ""
}
