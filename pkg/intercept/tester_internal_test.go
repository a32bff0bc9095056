// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzTesterReply checks what the test of the fallback takes for a good reply against another parser.
func FuzzTesterReply(f *testing.F) {
	const name = "kubernetes.default.svc.cluster.local."
	x, err := newExchange("cluster.local.")
	if err != nil {
		f.Fatal(err)
	}
	reply := func(rcode int) []byte {
		var q dns.Msg
		if err := q.Unpack(x.name); err != nil {
			f.Fatal(err)
		}
		m, err := new(dns.Msg).SetRcode(&q, rcode).Pack()
		if err != nil {
			f.Fatal(err)
		}
		return m
	}
	for _, m := range [][]byte{reply(dns.RcodeSuccess), reply(dns.RcodeNameError), reply(dns.RcodeServerFailure), x.name, x.self, reply(0)[:12]} {
		f.Add(m[2:])
	}
	f.Fuzz(func(t *testing.T, rest []byte) {
		m := append(bytes.Clone(x.name[:2]), rest...) // an attacker may know the ID
		now := exchange{self: x.self, name: x.name}
		err := now.receive(m)
		if now.done() || now.refused {
			t.Errorf("%x: a reply to the name counts for the self-query", m)
		}
		good := false
		if end := len(x.name); len(m) >= end {
			head := append(bytes.Clone(m[:6]), 0, 0, 0, 0, 0, 0) // without the sections after the question
			var a dns.Msg
			good = a.Unpack(append(head, m[headerSize:end]...)) == nil && a.Response && a.Opcode == dns.OpcodeQuery &&
				len(a.Question) == 1 && strings.EqualFold(a.Question[0].Name, name) && a.Question[0].Qtype == dns.TypeA &&
				a.Question[0].Qclass == dns.ClassINET && (a.Rcode == dns.RcodeSuccess || a.Rcode == dns.RcodeNameError)
		}
		if now.answered != (good && err == nil) || good && err != nil {
			t.Errorf("%x: answered %t, %v, want %t", m, now.answered, err, good)
		}
		_ = isAgent(append(m, make([]byte, headerSize)...)) // it must not panic
	})
}
