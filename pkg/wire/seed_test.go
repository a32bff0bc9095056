// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// seedQueries are queries as clients send them.
func seedQueries(tb testing.TB) [][]byte {
	tb.Helper()
	plain := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	edns := new(dns.Msg).SetQuestion("WwW.eXample.COM.", dns.TypeAAAA).SetEdns0(1232, true)
	o := edns.IsEdns0()
	o.Option = append(o.Option,
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"},
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{10, 1, 2, 0}},
		&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE},
		&dns.EDNS0_PADDING{Padding: make([]byte, 8)})
	odd := new(dns.Msg).SetQuestion("\\000\\.\\255.example.", 65280)
	odd.CheckingDisabled, odd.AuthenticatedData, odd.RecursionDesired = true, true, false
	transfer := new(dns.Msg).SetIxfr("example.", 1, "ns.example.", "mail.example.")
	known := transfer.Copy().SetEdns0(4096, true)
	signed := new(dns.Msg).SetQuestion("example.", dns.TypeSOA).SetEdns0(512, false)
	signed.SetTsig("key.example.", dns.HmacSHA256, 300, 1577836800)
	notify := new(dns.Msg).SetNotify("example.")
	var list [][]byte
	for _, m := range []*dns.Msg{plain, edns, odd, transfer, known, signed, notify} {
		list = append(list, pack(tb, m))
	}
	return append(list, ask(0, labels("a"), opt(0, 1, 0)), ask(0, labels("a"), opt(0, 0, 0), opt(0, 0, 0)))
}

// seedAnswers are answers as upstreams send them.
func seedAnswers(tb testing.TB) [][]byte {
	tb.Helper()
	denial := answer(tb, "no.example.", dns.TypeA, nil, records(tb, "example. 300 IN SOA ns.example. mail.example. 1 2 3 4 300"), nil)
	denial.Rcode = dns.RcodeNameError
	mixed := answer(tb, "www.example.", dns.TypeA,
		records(tb, "www.example. 300 IN CNAME web.other.test.", "web.other.test. 5 IN A 192.0.2.1", "web.other.test. 5 IN A 192.0.2.2"),
		records(tb, "other.test. 60 IN NS ns.other.test.", "old.test. 60 IN DNAME new.test."),
		records(tb, "ns.other.test. 60 IN AAAA 2001:db8::1", "mx.test. 60 IN MX 5 mail.mx.test.", "mail.mx.test. 60 IN SRV 1 2 3 mx.test.",
			"mx.test. 60 IN HTTPS 1 . alpn=h2", "mx.test. 60 IN TXT \"a\" \"b\"", "rp.test. 60 IN RP a.rp.test. b.rp.test."))
	signed := answer(tb, "example.", dns.TypeNS, records(tb, "example. 60 IN NS ns.sub.example.",
		"example. 60 IN RRSIG NS 13 1 60 20300101000000 20200101000000 1 signer.example. AAAA"), nil,
		records(tb, "ns.signer.example. 60 IN A 192.0.2.1"))
	moved := mixed.Copy()
	moved.Extra = append([]dns.RR{new(dns.Msg).SetEdns0(1232, true).Extra[0]}, moved.Extra...)
	return [][]byte{
		pack(tb, denial), pack(tb, mixed), pack(tb, signed), pack(tb, moved), pack(tb, mixed.Copy().SetEdns0(4096, true)),
		respelled(), chain(5), bare(126), bare(127),
		reply(0, 0, 2, opt(512, 0, 0), record(pointer(firstRecord), wire.TypeA, make([]byte, 4))),
	}
}
