// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An odd is a row of docs/odd-packets.md with packets that belong to it.
type odd struct {
	row     string // its packet
	packets [][]byte
	want    string // "none", or the rcode and what else is to be seen
}

// edit changes a packed query.
func edit(tb testing.TB, m *dns.Msg, change func(pkt []byte) []byte) []byte {
	tb.Helper()
	return change(pack(tb, m))
}

// withOPT is a query for www.test A with an OPT record that has options.
func withOPT(options ...dns.EDNS0) *dns.Msg {
	m := question("www.test.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = options
	return m
}

// counted sets one of the header's counts.
func counted(tb testing.TB, offset int, n uint16) []byte {
	tb.Helper()
	return edit(tb, question("www.test.", dns.TypeA), func(pkt []byte) []byte {
		binary.BigEndian.PutUint16(pkt[offset:], n)
		return pkt
	})
}

// classed is a query of a class.
func classed(tb testing.TB, name string, rrtype, class uint16) []byte {
	tb.Helper()
	m := question(name, rrtype)
	m.Question[0].Qclass = class
	return pack(tb, m)
}

// raw is a header with one question made of the given bytes.
func raw(question ...byte) []byte {
	return append([]byte{0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
}

func oddPackets(t *testing.T) []odd {
	t.Helper()
	rr := func(text string) dns.RR {
		r := record(t, text)
		return r
	}
	plain := pack(t, question("www.test.", dns.TypeA))
	opt := pack(t, withOPT())
	header := plain[:12]
	long := bytes.Repeat(append([]byte{63}, bytes.Repeat([]byte{'a'}, 63)...), 4)
	var opcodes [][]byte
	for opcode := 1; opcode < 16; opcode++ {
		opcodes = append(opcodes, edit(t, question("www.test.", dns.TypeA), func(pkt []byte) []byte {
			pkt[2] |= byte(opcode << 3)
			return pkt
		}))
	}
	withAnswer := question("www.test.", dns.TypeA)
	withAnswer.Answer = []dns.RR{rr("www.test. 1 IN A 1.1.1.1")}
	withAuthority := question("www.test.", dns.TypeA)
	withAuthority.Ns = []dns.RR{rr("test. 1 IN NS ns.test.")}
	ixfr := new(dns.Msg).SetIxfr("test.", 1, "ns.test.", "host.test.")
	ixfrAnswer, ixfrTwo, ixfrNS := ixfr.Copy(), ixfr.Copy(), ixfr.Copy()
	ixfrAnswer.Answer, ixfrAnswer.Ns = ixfr.Ns, nil
	ixfrTwo.Ns = append(ixfrTwo.Ns, ixfr.Ns...)
	ixfrNS.Ns = []dns.RR{rr("test. 1 IN NS ns.test.")}
	three := question("www.test.", dns.TypeA)
	three.Extra = []dns.RR{rr("a.test. 1 IN A 1.1.1.1"), rr("b.test. 1 IN A 1.1.1.1"), rr("c.test. 1 IN A 1.1.1.1")}
	twoOPTs := edit(t, withOPT(), func(pkt []byte) []byte {
		pkt[11] = 2
		return append(pkt, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0)
	})
	namedOPT := edit(t, withOPT(), func(pkt []byte) []byte {
		at := len(pkt) - 11
		return slices.Concat(pkt[:at], []byte{1, 'x'}, pkt[at:])
	})
	cutOption := edit(t, withOPT(), func(pkt []byte) []byte {
		pkt[len(pkt)-1] = 5
		return append(pkt, 0, 10, 0, 8, 1) // says eight bytes, has one
	})
	var subnets [][]byte
	for _, data := range []string{"", "\x00\x01\x18", "\x00\x01\x18\x00\x0a\x01", "\x00\x01\x18\x00\x0a\x01\x02\x03", "\x00\x01\x21\x00\x0a\x01\x02\x03\x04", "\x00\x01\x00\x08", "\x00\x03\x00\x00"} {
		subnets = append(subnets, pack(t, withOPT(&dns.EDNS0_LOCAL{Code: 8, Data: []byte(data)})))
	}
	var many []dns.EDNS0
	for range 65 {
		many = append(many, &dns.EDNS0_LOCAL{Code: 65001})
	}
	version1 := withOPT()
	version1.IsEdns0().SetVersion(1)
	var reserved [][]byte
	for _, t16 := range []uint16{0, 41, 128, 200, 249, 250, 253, 254} {
		reserved = append(reserved, classed(t, "www.test.", t16, dns.ClassINET))
	}
	unasked := question("not-held.test.", dns.TypeA)
	unasked.RecursionDesired = false
	flags := withOPT()
	flags.Zero = true
	flags.IsEdns0().Hdr.Ttl |= 0x7fff
	small := withOPT()
	small.IsEdns0().SetUDPSize(1)
	return []odd{
		{"empty, or shorter than a header", [][]byte{nil, {1}, header[:11]}, "none"},
		{"QR=1", [][]byte{edit(t, question("www.test.", dns.TypeA), func(p []byte) []byte { p[2] |= 0x80; return p })}, "none"},
		{"opcode other than QUERY", opcodes, "NOTIMP header"},
		{"QDCOUNT of 0", [][]byte{counted(t, 4, 0)}, "FORMERR header"},
		{"QDCOUNT of 2", [][]byte{counted(t, 4, 2)}, "FORMERR header"},
		{"question cut", [][]byte{header, plain[:14], plain[:len(plain)-1]}, "FORMERR header"},
		{"label over 63 bytes, or a pointer in the question", [][]byte{raw(64, 'a', 0, 0, 1, 0, 1), raw(0xc0, 12, 0, 1, 0, 1), raw(0x80, 0, 0, 1, 0, 1)}, "FORMERR header"},
		{"name over 255 bytes", [][]byte{raw(append(long, 0, 0, 1, 0, 1)...)}, "FORMERR header"},
		{"answer or authority records in a query", [][]byte{pack(t, withAnswer), pack(t, withAuthority), counted(t, 6, 1), counted(t, 8, 1)}, "FORMERR header"},
		{"more than two additional records", [][]byte{pack(t, three), counted(t, 10, 65535)}, "FORMERR header"},
		{"two OPT records", [][]byte{twoOPTs}, "FORMERR header"},
		{"OPT record with a name", [][]byte{namedOPT}, "FORMERR header"},
		{"EDNS option cut", [][]byte{cutOption, opt[:len(opt)-1]}, "FORMERR header"},
		{"more than 64 EDNS options", [][]byte{pack(t, withOPT(many...))}, "FORMERR header"},
		{"cookie of a length that cannot be", [][]byte{pack(t, withOPT(&dns.EDNS0_COOKIE{Code: 10, Cookie: "00112233445566"})), pack(t, withOPT(&dns.EDNS0_COOKIE{Code: 10, Cookie: strings.Repeat("00", 41)}))}, "FORMERR header"},
		{"client subnet that cannot be read", subnets, "FORMERR header"},
		{"EDNS version above 0", [][]byte{pack(t, version1)}, "BADVERS question OPT(version=0)"},
		{"class CH, version.bind and version.server", [][]byte{classed(t, "VERSION.bind.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "version.server.", dns.TypeTXT, dns.ClassCHAOS)}, `NOERROR question [TXT "v9"]`},
		{"class CH, hostname.bind and id.server", [][]byte{classed(t, "hostname.bind.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "id.SERVER.", dns.TypeTXT, dns.ClassCHAOS)}, `NOERROR question [TXT "node-7"]`},
		{"class CH, self.node-cache", [][]byte{classed(t, "self.node-cache.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "SELF.Node-Cache.", dns.TypeTXT, dns.ClassCHAOS)}, "REFUSED question"},
		{"class CH, self.node-cache behind the running agent's name", [][]byte{classed(t, "a1b2c3.self.node-cache.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "A1b2C3.SELF.Node-Cache.", dns.TypeTXT, dns.ClassCHAOS)}, `NOERROR question [TXT "a1b2c3"]`},
		{"class CH, any other", [][]byte{classed(t, "www.test.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "version.bind.", dns.TypeA, dns.ClassCHAOS), classed(t, "self.node-cache.", dns.TypeANY, dns.ClassCHAOS), classed(t, "a.self.node-cache.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "a1b2c4.self.node-cache.", dns.TypeTXT, dns.ClassCHAOS), classed(t, "a1b2c3.a.self.node-cache.", dns.TypeTXT, dns.ClassCHAOS)}, "REFUSED question"},
		{"class HS, NONE, ANY or unknown", [][]byte{classed(t, "www.test.", dns.TypeA, dns.ClassHESIOD), classed(t, "www.test.", dns.TypeA, dns.ClassNONE), classed(t, "www.test.", dns.TypeA, dns.ClassANY), classed(t, "www.test.", dns.TypeA, 0), classed(t, "www.test.", dns.TypeA, 77)}, "REFUSED question"},
		{"type ANY", [][]byte{classed(t, "www.test.", dns.TypeANY, dns.ClassINET)}, `NOERROR question [HINFO "RFC8482" ""]`},
		{"type AXFR", [][]byte{classed(t, "test.", dns.TypeAXFR, dns.ClassINET)}, "REFUSED question"},
		{"type IXFR", [][]byte{pack(t, ixfr), classed(t, "test.", dns.TypeIXFR, dns.ClassINET)}, "REFUSED question"},
		{"type IXFR with anything but one whole SOA record before the additional section", [][]byte{pack(t, ixfrAnswer), pack(t, ixfrTwo), pack(t, ixfrNS), pack(t, ixfr)[:len(pack(t, ixfr))-1]}, "FORMERR header"},
		{"types 0, 41, and 128 to 254", reserved, "REFUSED question"},
		{"unknown data type", [][]byte{classed(t, "www.test.", 65280, dns.ClassINET)}, `NOERROR question [TYPE65280 \# 2 abcd]`},
		{"RD=0, name not held", [][]byte{pack(t, unasked)}, "REFUSED question"},
		{"name of a query of our own that came back", [][]byte{classed(t, "000102030405060708090a0b0c0d0e0f.loop.node-cache.", dns.TypeA, dns.ClassINET)}, "REFUSED question"},
		{"unknown EDNS option", [][]byte{pack(t, withOPT(&dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1, 2}}, &dns.EDNS0_NSID{Code: dns.EDNS0NSID}))}, "NOERROR question [A 192.0.2.1] OPT(version=0)"},
		{"EDNS option 65305, empty or an address", [][]byte{pack(t, withOPT(&dns.EDNS0_LOCAL{Code: wire.OptionExplain})), pack(t, withOPT(&dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: []byte{10, 0, 0, 1}}))}, "NOERROR question [A 192.0.2.1] OPT(version=0)"},
		{"unknown EDNS flag, Z bit", [][]byte{pack(t, flags)}, "NOERROR question [A 192.0.2.1] OPT(version=0)"},
		{"EDNS size under 512", [][]byte{pack(t, small)}, "NOERROR question [A 192.0.2.1] OPT(version=0)"},
		{"cookie", [][]byte{pack(t, withOPT(&dns.EDNS0_COOKIE{Code: 10, Cookie: "0011223344556677"}))}, "NOERROR question [A 192.0.2.1] OPT(version=0 cookie)"},
		{"client subnet", [][]byte{pack(t, withOPT(&dns.EDNS0_SUBNET{Code: 8, Family: 1, SourceNetmask: 24, Address: []byte{10, 1, 2, 0}}))}, "NOERROR question [A 192.0.2.1] OPT(version=0)"},
		{"bytes after the last record", [][]byte{append(slices.Clone(plain), "and more"...)}, "NOERROR question [A 192.0.2.1]"},
	}
}

func TestOddPackets(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1", `www.test. 300 IN TYPE65280 \# 2 abcd`)
	for _, redirecting := range []bool{false, true} {
		p := plan(t, u)
		p.Version, p.Hostname, p.Self = "v9", "node-7", "a1b2c3"
		p.Loop = func([]byte) bool { return true }
		if redirecting { // which changes no reply
			detouring(t, p)
			rewriting(t, p, "exact version.bind www.test", "prefix id www")
		}
		r := newResolver(t, p)
		for _, tt := range oddPackets(t) {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, TCP %t, redirecting %t", tt.row, stream, redirecting), func(t *testing.T) {
					t.Parallel()
					for i, pkt := range tt.packets {
						c := newClient6(r)
						c.from.Stream = stream
						assert.Same(t, fmt.Sprintf("packet %d, %x", i, pkt), tt.want, describe(t, pkt, c.exchange(t, pkt)))
					}
				})
			}
		}
	}
	t.Cleanup(func() { // after the parallel rows
		for _, m := range u.asked {
			if opt := m.IsEdns0(); opt == nil || len(opt.Option) > 0 || m.Question[0].Qclass != dns.ClassINET || m.Opcode != dns.OpcodeQuery || m.Zero {
				t.Errorf("sent upstream:\n%s", m)
			}
		}
	})
}

// describe puts a reply into the words of the table, after checking what every
// reply must have.
func describe(t *testing.T, pkt, reply []byte) string {
	t.Helper()
	if reply == nil {
		return "none"
	}
	if !bytes.Equal(reply[:2], pkt[:2]) || reply[2]&0x80 == 0 || reply[2]&0x79 != pkt[2]&0x79 {
		t.Errorf("reply's ID, QR, opcode or RD do not fit: %x to %x", reply[:4], pkt[:4])
	}
	if len(reply) == 12 {
		return dns.RcodeToString[int(reply[3]&15)] + " header"
	}
	m := unpack(t, reply)
	words := []string{dns.RcodeToString[m.Rcode], "question"}
	if m.Rcode == dns.RcodeBadVers {
		words[0] = "BADVERS"
	}
	end := 12 + bytes.IndexByte(pkt[12:], 0) + 5
	if !bytes.Equal(reply[12:end], pkt[12:end]) {
		t.Errorf("question %x, asked %x", reply[12:end], pkt[12:end])
	}
	for _, rr := range m.Answer {
		text := strings.SplitN(rr.String(), "\t", 5)[4]
		words = append(words, "["+dns.Type(rr.Header().Rrtype).String()+" "+text+"]")
	}
	if opt := m.IsEdns0(); opt != nil {
		word := "OPT(version=" + string('0'+rune(opt.Version()))
		for _, o := range opt.Option {
			switch o := o.(type) {
			case *dns.EDNS0_COOKIE:
				if len(o.Cookie) != 48 || !strings.HasPrefix(o.Cookie, "0011223344556677") {
					t.Errorf("cookie %s", o.Cookie)
				}
				word += " cookie"
			default:
				word += " " + o.String()
			}
		}
		if opt.Hdr.Ttl&0x7fff != 0 {
			word += " flags"
		}
		words = append(words, word+")")
	}
	if m.Zero {
		words = append(words, "Z")
	}
	return strings.Join(words, " ")
}

// TestOddPacketsDocumented holds the page for users to the table above.
func TestOddPacketsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/odd-packets.md")
	assert.NoError(t, err)
	var documented, tested []string
	list, _, _ := strings.Cut(string(page), "\n## ")
	for _, m := range regexp.MustCompile(`(?m)^- \*([^*]+)\*: `).FindAllStringSubmatch(list, -1) {
		documented = append(documented, m[1])
	}
	var packets strings.Builder
	for _, tt := range oddPackets(t) {
		tested = append(tested, tt.row)
		for _, pkt := range tt.packets {
			pkt = slices.Clone(pkt)
			clear(pkt[:min(2, len(pkt))]) // the ID is random
			fmt.Fprintf(&packets, "%s: %x\n", tt.row, pkt)
		}
	}
	assert.Golden(t, "testdata/odd-packets.txt", packets.String()) // which test/node/hits reads
	if diff := cmp.Diff(documented, tested); diff != "" {
		t.Errorf("docs/odd-packets.md and its test (-documented +tested):\n%s", diff)
	}
}
