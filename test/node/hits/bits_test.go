// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
)

// A message is what a pod sends over UDP.
type message struct {
	name string
	pkt  []byte
}

// messages are the packets of docs/odd-packets.md, and queries with each bit inverted, of each length, and with more behind.
func messages(t *testing.T) (list []message) {
	t.Helper()
	text, err := os.ReadFile("../../../pkg/resolve/testdata/odd-packets.txt")
	assert.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		row, digits, _ := strings.Cut(strings.TrimSpace(line), ": ")
		pkt, err := hex.DecodeString(digits)
		assert.NoError(t, err)
		list = append(list, message{row, pkt})
	}
	plain := query("www.test.", dns.TypeTXT)
	opt := withOPT(plain, 1232, false)
	for i, base := range [][]byte{plain, opt} {
		name := []string{"no OPT record", "OPT record"}[i]
		for bit := range 8 * len(base) {
			pkt := slices.Clone(base)
			pkt[bit/8] ^= 1 << (bit % 8)
			list = append(list, message{fmt.Sprintf("%s, bit %d of byte %d", name, bit%8, bit/8), pkt})
		}
		for size := range base {
			list = append(list, message{fmt.Sprintf("%s, %d bytes", name, size), base[:size]})
		}
		for size := range 16 {
			zeros, record := make([]byte, size), (string(opt[len(plain):]) + "more!")[:size]
			list = append(list,
				message{fmt.Sprintf("%s, %d zeros more", name, size), append(slices.Clone(base), zeros...)},
				message{fmt.Sprintf("%s, %d bytes of an OPT record more", name, size), append(slices.Clone(base), record...)})
		}
	}
	return append(list,
		message{"capitals", capitals(slices.Clone(plain))},
		message{"OPT record before the question", slices.Concat(opt[:12], opt[len(plain):], plain[12:])},
		message{"a name with the bytes of a capital as a length", rawQuery([]byte("\x43www\x04test\x00"), dns.TypeTXT)})
}

// TestMessages sends each message with hits in the kernel and without.
func TestMessages(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	var conns []*net.UDPConn
	for _, p := range n.pods[:2] {
		for family := range families {
			c := p.dial(t, family)
			for _, name := range []string{"www.test.", "web.shop.svc.cluster.local."} {
				pkt := query(name, dns.TypeTXT)
				for _, pkt := range [][]byte{pkt, withOPT(pkt, 1232, false), withOPT(pkt, 1232, true)} {
					if !n.prime(t, c, pkt) {
						t.Fatalf("%x: the kernel does not answer", pkt)
					}
				}
			}
			conns = append(conns, c)
		}
	}
	answered := 0
	for i, m := range messages(t) {
		c := conns[i%len(conns)]
		var want expected
		n.kernel.Set(false)
		first, _ := n.exchange(t, c, m.pkt) // into the cache
		for range 6 {
			reply, _ := n.exchange(t, c, m.pkt)
			want.add(reply)
			if first == nil {
				break
			}
		}
		n.kernel.Set(true)
		for range 2 {
			reply, byKernel := n.exchange(t, c, m.pkt)
			if diff := want.differ(reply); diff != "" {
				t.Errorf("%s, %x: %s, by the kernel: %t: %x", m.name, m.pkt, diff, byKernel, reply)
			}
			if byKernel {
				answered++
			}
		}
	}
	t.Logf("%d replies of the kernel", answered)
	if n.attributed.Load() == 0 {
		t.Error("no reply was attributed while the agent runs")
	}
	if answered < 100 { // IDs, capitals, sizes
		t.Errorf("the kernel answered %d messages", answered)
	}
}
