// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestDigUnusualQueries asks what no stub resolver asks, and expects the rcode that each RFC names.
func TestDigUnusualQueries(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	tests := []struct {
		name string
		args []string
		want string // status
	}{
		{name: "version.bind", args: []string{"version.bind", "CH", "TXT"}, want: "REFUSED"},
		{name: "hostname.bind", args: []string{"hostname.bind", "CH", "TXT"}, want: "REFUSED"},
		{name: "id.server", args: []string{"id.server", "CH", "TXT"}, want: "REFUSED"},
		{name: "class HS", args: []string{"host.e2e.test", "HS", "A"}, want: "REFUSED"},
		{name: "class NONE", args: []string{"-c", "CLASS254", "host.e2e.test", "A"}, want: "REFUSED"},
		{name: "no recursion for a name not held", args: []string{"unheld.wild.e2e.test", "A", "+norecurse"}, want: "REFUSED"},
		{name: "EDNS version 1", args: []string{"host.e2e.test", "A", "+edns=1", "+noednsnegotiation"}, want: "BADVERS"},
		{name: "NOTIFY", args: []string{"e2e.test", "SOA", "+opcode=NOTIFY"}, want: "NOTIMP"},
		{name: "UPDATE", args: []string{"e2e.test", "SOA", "+opcode=UPDATE"}, want: "NOTIMP"},
		{name: "opcode 15", args: []string{"e2e.test", "SOA", "+opcode=15"}, want: "NOTIMP"},
		{name: "no question", args: []string{"+header-only"}, want: "FORMERR"},
	}
	for _, tt := range tests {
		for _, transport := range []string{"+notcp", "+tcp"} {
			t.Run(tt.name+" "+transport, func(t *testing.T) {
				t.Parallel()
				got := dig(t, a.addr, append([]string{transport}, tt.args...)...)
				if got.status != tt.want {
					t.Errorf("status %s, want %s\n%s", got.status, tt.want, got.raw)
				}
				if len(got.answer) != 0 {
					t.Errorf("answer %q, want none", got.answer)
				}
			})
		}
	}
}

func TestClassNeverFromTheCache(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	if got := dig(t, a.addr, "host.e2e.test", "A"); len(got.answer) != 1 {
		t.Fatalf("warming the cache: %s", got.raw)
	}
	for _, class := range []string{"CH", "HS", "CLASS254", "CLASS0"} {
		if got := dig(t, a.addr, "-c", class, "host.e2e.test", "A"); got.status != "REFUSED" || len(got.answer) != 0 {
			t.Errorf("class %s: status %s, answer %q, want REFUSED and none", class, got.status, got.answer)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{
		to:   []string{startNSD(t).addr},
		more: `identity: {version: "a version", hostname: "a host"}`,
	})
	for name, want := range map[string]string{"version.bind": `"a version"`, "hostname.bind": `"a host"`, "id.server": `"a host"`} {
		got := dig(t, a.addr, name, "CH", "TXT")
		if len(got.answer) != 1 || !strings.HasSuffix(got.answer[0], "CH TXT "+want) {
			t.Errorf("%s: status %s, answer %q, want %s", name, got.status, got.answer, want)
		}
	}
}

func TestTransferRefused(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	for _, network := range []string{"udp", "tcp"} {
		for _, transfer := range []uint16{dns.TypeAXFR, dns.TypeIXFR} {
			client := dns.Client{Net: network, Timeout: 5 * time.Second}
			r, _, err := client.Exchange(new(dns.Msg).SetQuestion("e2e.test.", transfer), a.addr)
			if err != nil {
				t.Errorf("%s over %s: %v", dns.TypeToString[transfer], network, err)
				continue
			}
			if r.Rcode != dns.RcodeRefused || len(r.Answer) != 0 {
				t.Errorf("%s over %s: %s, want REFUSED", dns.TypeToString[transfer], network, dns.RcodeToString[r.Rcode])
			}
		}
	}
}

// TestEDNSIsHopByHop shows what becomes of options: cookies are answered, all others end at the agent.
func TestEDNSIsHopByHop(t *testing.T) {
	t.Parallel()
	upstream := startScripted(t, answerA)
	a := startAgent(t, settings{to: []string{upstream.addr}})

	first := dig(t, a.addr, "cookie.e2e.test", "A", "+cookie=0123456789abcdef")
	if !strings.HasPrefix(first.cookie, "0123456789abcdef") || !strings.HasSuffix(first.cookie, "(good)") {
		t.Errorf("cookie: %q, want the client's, completed\n%s", first.cookie, first.raw)
	}
	full, _, _ := strings.Cut(first.cookie, " ")
	if again := dig(t, a.addr, "cookie.e2e.test", "A", "+cookie="+full); again.status != "NOERROR" || !strings.HasSuffix(again.cookie, "(good)") {
		t.Errorf("the server's own cookie: status %s, cookie %q", again.status, again.cookie)
	}
	for _, option := range []string{"+ednsopt=65001:abcd", "+nsid", "+subnet=192.0.2.0/24", "+padding=128", "+expire"} {
		for _, source := range []string{"upstream", "cache"} {
			got := dig(t, a.addr, strings.Trim(option, "+:=./")[:4]+".e2e.test", "A", "+nocookie", option)
			if got.status != "NOERROR" || got.edns == "" {
				t.Errorf("%s from the %s: status %s, EDNS line %q", option, source, got.status, got.edns)
			}
			if _, after, _ := strings.Cut(got.raw, got.edns+"\n"); !strings.HasPrefix(after, ";; QUESTION") {
				t.Errorf("%s from the %s: the reply has an option:\n%s", option, source, got.raw)
			}
		}
	}
	if got := dig(t, a.addr, "plain.e2e.test", "A", "+noedns"); got.edns != "" {
		t.Errorf("a query without EDNS was answered with %q", got.edns)
	}
	for _, q := range upstream.seen() {
		opt := q.IsEdns0()
		if opt == nil {
			t.Errorf("the query for %s went upstream without EDNS", q.Question[0].Name)
			continue
		}
		for _, option := range opt.Option {
			t.Errorf("the query for %s went upstream with option %d (%s)", q.Question[0].Name, option.Option(), option)
		}
	}
}

// TestMalformedPackets sends what dig refuses to send.
func TestMalformedPackets(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	good, err := new(dns.Msg).SetQuestion("host.e2e.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func([]byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	opt := []byte{0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0}
	tests := []struct {
		name   string
		packet []byte
		want   int // rcode, -1: no reply
	}{
		{name: "shorter than a header", packet: good[:11], want: -1},
		{name: "a response", packet: change(func(b []byte) []byte { b[2] |= 0x80; return b }), want: -1},
		{name: "two questions", packet: change(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), want: dns.RcodeFormatError},
		{name: "no question", packet: change(func(b []byte) []byte { b[5] = 0; return b[:12] }), want: dns.RcodeFormatError},
		{name: "a cut question", packet: good[:len(good)-3], want: dns.RcodeFormatError},
		{
			name: "two OPT records", want: dns.RcodeFormatError,
			packet: change(func(b []byte) []byte { b[11] = 2; return append(append(b, opt...), opt...) }),
		},
		{
			name: "an OPT record with a name", want: dns.RcodeFormatError,
			packet: change(func(b []byte) []byte { b[11] = 1; return append(append(b, 1, 'x'), opt...) }),
		},
		{
			name: "an option longer than its record", want: dns.RcodeFormatError,
			packet: change(func(b []byte) []byte {
				b[11] = 1
				return append(append(b, opt[:9]...), 0, 4, 0, 10, 0, 9)
			}),
		},
		{name: "a pointer in the question", packet: append(good[:12:12], 0xc0, 12, 0, 1, 0, 1), want: dns.RcodeFormatError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("udp", a.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			// The good query behind the packet has another ID: it tells when no reply to the packet can come first.
			probe := append([]byte{good[0] ^ 0xff, good[1]}, good[2:]...)
			for _, packet := range [][]byte{tt.packet, probe} {
				if _, err := conn.Write(packet); err != nil {
					t.Fatal(err)
				}
			}
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			reply := make([]byte, 4096)
			n, err := conn.Read(reply)
			if err != nil || n < 12 {
				t.Fatalf("%d bytes, %v, want a reply", n, err)
			}
			got := int(reply[3] & 15)
			if answered := reply[0] == good[0]; answered != (tt.want >= 0) {
				t.Fatalf("answered: %t with %s, want %t", answered, dns.RcodeToString[got], tt.want >= 0)
			}
			if tt.want >= 0 && (got != tt.want || reply[1] != good[1] || reply[2]&0x80 == 0) {
				t.Errorf("header % x, want a response of %s", reply[:12], dns.RcodeToString[tt.want])
			}
		})
	}
}
