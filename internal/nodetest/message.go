// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"
)

// askName is the name that clients ask for.
const askName = "who.nodetest.test."

// ttl of answers, in seconds. It is longer than any test.
const ttl = 3600

// newQuery packs a TXT query.
func newQuery(id uint16, name string) []byte {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	q.Id = id
	packed, err := q.Pack()
	if err != nil {
		panic(err) // the names are ours
	}
	return packed
}

// answer is the response of the server called name to a query.
func answer(query *dns.Msg, name string) *dns.Msg {
	m := new(dns.Msg).SetReply(query)
	m.Authoritative, m.RecursionAvailable, m.Compress = true, true, true
	q := query.Question[0]
	head, sum := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass, Ttl: ttl}, byte(0)
	for _, c := range []byte(name) {
		sum = sum*31 + c
	}
	switch q.Qtype {
	case dns.TypeTXT:
		m.Answer = []dns.RR{&dns.TXT{Hdr: head, Txt: []string{name}}}
	case dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(192, 0, 2, sum)}}
	case dns.TypeAAAA:
		m.Answer = []dns.RR{&dns.AAAA{Hdr: head, AAAA: net.IP{0x20, 1, 0xd, 0xb8, 15: sum}}}
	}
	return m
}

// serverName returns the text of the first TXT record: the name of the server that answered.
func serverName(msg []byte) (string, error) {
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		return "", err
	}
	if m.Rcode != dns.RcodeSuccess || !m.Response {
		return "", fmt.Errorf("answered with %s", dns.RcodeToString[m.Rcode])
	}
	for _, rr := range m.Answer {
		if txt, ok := rr.(*dns.TXT); ok {
			return strings.Join(txt.Txt, ""), nil
		}
	}
	return "", errors.New("answered without data")
}
