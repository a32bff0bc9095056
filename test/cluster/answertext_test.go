// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// clientTimeout is how long a client waits before it counts a query as lost.
const clientTimeout = 5 * time.Second

// exchange asks over UDP, once.
func exchange(addr netip.AddrPort, name string, qtype uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	q.SetEdns0(1232, false)
	m, _, err := (&dns.Client{Timeout: clientTimeout}).Exchange(q, addr.String())
	return m, err
}

// answerText asks over UDP and puts the answer in words.
func answerText(addr netip.AddrPort, name string, qtype uint16) string {
	m, err := exchange(addr, name, qtype)
	if err != nil {
		return "lost: " + err.Error()
	}
	return messageText(m)
}

// messageText gives the response code, the sorted data of the answer section, and the Extended DNS Error: for example
// "NOERROR 10.0.0.1 10.0.0.2 ede=3".
func messageText(m *dns.Msg) string {
	words := []string{dns.RcodeToString[m.Rcode]}
	var data []string
	for _, rr := range m.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(data)
	words = append(words, data...)
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				words = append(words, fmt.Sprintf("ede=%d", e.InfoCode))
			}
		}
	}
	return strings.Join(words, " ")
}

// staleText is the same answer after it expired, in words (RFC 8914 sections 4.4 and 4.20).
func staleText(said string) string {
	if said == dns.RcodeToString[dns.RcodeNameError] {
		return said + " ede=19"
	}
	return said + " ede=3"
}
