// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// startScripted runs an upstream whose answers a test writes, and returns its address.
func startScripted(t *testing.T, handle dns.HandlerFunc) string {
	t.Helper()
	return proctest.StartDNS(t, handle).String()
}

// answerA answers every query with one address.
func answerA(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	r.RecursionAvailable = true
	if q.Question[0].Qtype == dns.TypeA {
		r.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IPv4(192, 0, 2, 7),
		}}
	}
	_ = w.WriteMsg(r) // a client that has gone away is none of the upstream's business
}
