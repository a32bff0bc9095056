// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A fuzzUpstream returns given bytes behind a matching header.
type fuzzUpstream struct {
	flags  [2]byte
	counts [6]byte
	rest   []byte
	sent   []byte // the last answer
}

// Ask implements resolve.Asker.
func (p *fuzzUpstream) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	var dst []byte
	end := 12 + bytes.IndexByte(q[12:], 0) + 5
	dst = append(dst, 0, 0, 0x80|p.flags[0]&0x07, p.flags[1], 0, 1)
	dst = append(dst, p.counts[:]...)
	dst = append(dst, q[12:end]...)
	dst = append(dst, p.rest...)
	p.sent = bytes.Clone(dst)
	respond(to, dst, nil, batch)
}

// FuzzAnswer returns arbitrary bytes as the upstream's answer, for small and large clients.
func FuzzAnswer(f *testing.F) {
	for _, text := range [][]string{
		{"www.test. 300 IN A 192.0.2.1", "www.test. 300 IN A 192.0.2.2"},
		{"www.test. 300 IN CNAME a.test.", "a.test. 300 IN AAAA fd00::1"},
		{"www.test. 300 IN MX 10 mail.www.test.", "test. 60 IN SOA ns.test. h.test. 1 2 3 4 5"},
	} {
		m := question("www.test.", dns.TypeA)
		for _, rr := range text {
			one := record(f, rr)
			m.Answer = append(m.Answer, one)
		}
		m.Compress = true
		m.SetEdns0(4096, true)
		pkt := pack(f, m)
		f.Add([]byte{pkt[2], pkt[3]}, pkt[6:12], pkt[26:], uint16(1232))
	}
	f.Fuzz(func(t *testing.T, flags, counts, rest []byte, size uint16) {
		if len(flags) < 2 || len(counts) < 6 || len(rest) > 60_000 {
			return
		}
		u := &fuzzUpstream{rest: rest}
		copy(u.flags[:], flags)
		copy(u.counts[:], counts)
		r := newResolver(t, plan(t, u))
		for round, name := range []string{"WWW.test.", "www.TEST.", "www.test."} {
			m := question(name, dns.TypeA)
			if round > 0 {
				m.SetEdns0(size, true)
			}
			pkt := pack(t, m)
			reply := newClient(r, round == 2).exchange(t, pkt)
			var walked wire.Message
			if err := walked.Parse(bytes.Clone(reply)); err != nil {
				t.Fatalf("round %d: %v: %x", round, err, reply)
			}
			question := m.Question[0]
			end := 12 + bytes.IndexByte(pkt[12:], 0) + 5
			if !bytes.Equal(reply[:2], pkt[:2]) || reply[2]&0x80 == 0 || !bytes.Equal(reply[12:end], pkt[12:end]) {
				t.Errorf("round %d: asked %v, got a reply to another query: %x", round, question, reply)
			}
			limit := wire.MinUDP
			switch round {
			case 2:
				limit = wire.MaxMessage
			case 1:
				limit = min(max(int(size), wire.MinUDP), wire.SafeUDP)
			}
			if len(reply) > limit {
				t.Errorf("round %d: %d bytes, limit %d", round, len(reply), limit)
			}
			if walked.HasOPT() != (round > 0) {
				t.Errorf("round %d: OPT %t", round, walked.HasOPT())
			}
			// What is inside a TXT or the like passes as it is, right or wrong.
			if new(dns.Msg).Unpack(u.sent) == nil && new(dns.Msg).Unpack(reply) != nil {
				t.Errorf("round %d: %x can be read, the reply %x cannot", round, u.sent, reply)
			}
		}
	})
}
