// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
)

// A variant is a query with the same question in another form.
type variant struct {
	name  string
	limit int // of the reply
	edns  bool
	edit  func(pkt []byte) []byte
}

func variants() []variant {
	list := []variant{
		{"plain", 512, false, func(pkt []byte) []byte { return pkt }},
		{"AD", 512, false, func(pkt []byte) []byte { pkt[3] |= 0x20; return pkt }},
		{"capitals", 512, false, capitals},
		{"DO", 1232, true, func(pkt []byte) []byte { return withOPT(pkt, 1232, true) }},
		{"AD, DO, capitals", 4096, true, func(pkt []byte) []byte {
			pkt[3] |= 0x20
			return withOPT(capitals(pkt), 4096, true)
		}},
	}
	for _, size := range []uint16{0, 100, 511, 512, 513, 530, 750, 1232, 4096, 65535} {
		list = append(list, variant{fmt.Sprintf("EDNS %d", size), max(512, int(size)), true, func(pkt []byte) []byte {
			return withOPT(pkt, size, false)
		}})
	}
	return list
}

// capitals converts the letters of the name in a query without more.
func capitals(pkt []byte) []byte {
	for i, c := range pkt[:len(pkt)-4] {
		if i >= 12 && 'a' <= c && c <= 'z' {
			pkt[i] = c - 0x20
		}
	}
	return pkt
}

// edeRoom are the bytes that the agent reserves for an Extended DNS Error.
const edeRoom = 6

// fits reports whether the kernel gives such a reply of the process to a query: it is whole, and there is room for an Extended
// DNS Error.
func (v *variant) fits(reply []byte) bool {
	size := len(reply)
	if v.edns {
		size += edeRoom
	}
	return reply[2]&0x02 == 0 && size <= v.limit
}

// A queryCase is a query of a pod.
type queryCase struct {
	what  string
	pkt   []byte
	conn  *net.UDPConn
	kind  string // of client
	taken bool   // the kernel answers
	expected
}

// mostRotations is more than the forms that any set here has.
const mostRotations = 200

// TestReplies asks every question in every form with hits in the kernel and without.
func TestReplies(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	cases := n.queryCases(t)
	n.kernel.Set(true)
	for group := range slices.Chunk(cases, 100) { // of a time in which the table sees a question twice
		for range 3 {
			for i := range group {
				n.compare(t, &group[i])
			}
			time.Sleep(25 * time.Millisecond) // a worker offers a question once within 20 ms
		}
	}
	answered := map[string]int{}
	for i := range cases {
		c := &cases[i]
		if c.taken && !n.prime(t, c.conn, c.pkt) {
			t.Errorf("%s: the kernel does not answer %+v", c.what, n.kernel.Stats())
		}
		if n.compare(t, c) {
			answered[c.kind]++
			if !c.taken {
				t.Errorf("%s: the kernel answers", c.what)
			}
		}
	}
	t.Logf("%d queries, answered by the kernel: %v", len(cases), answered)
	assert.Equal(t, "kinds of clients that the kernel answered", 4, len(answered))
}

// queryCases are all questions in all forms, with the replies of the process.
func (n *node) queryCases(t *testing.T) (list []queryCase) {
	t.Helper()
	n.kernel.Set(false)
	conns := map[string]*net.UDPConn{}
	for i, s := range subjects() {
		for j, v := range variants() {
			p, family := n.pods[(i+j)%2], (i+j)/2%2
			c := queryCase{kind: p.name + " " + families[family], pkt: v.edit(query(s.name, s.rrtype))}
			if conns[c.kind] == nil {
				conns[c.kind] = p.dial(t, family)
			}
			c.what, c.conn = fmt.Sprintf("%s %s, %s, %s", s.name, dns.Type(s.rrtype), v.name, c.kind), conns[c.kind]
			n.exchange(t, c.conn, c.pkt) // into the cache
			whole, rotations := 0, 2
			if s.rotates {
				rotations = mostRotations
			}
			for range rotations {
				reply, byKernel := n.exchange(t, c.conn, c.pkt)
				if byKernel || reply == nil {
					t.Fatalf("%s: a reply of the kernel, which is off, or none", c.what)
				}
				c.add(reply)
				if v.fits(reply) {
					whole++
				}
			}
			c.taken = s.taken && whole == rotations && (!s.partial || !v.edns || v.limit >= 750)
			list = append(list, c)
		}
	}
	return list
}

// compare asks, and reports whether the kernel replied.
func (n *node) compare(t *testing.T, c *queryCase) bool {
	t.Helper()
	reply, byKernel := n.exchange(t, c.conn, c.pkt)
	if diff := c.differ(reply); diff != "" {
		t.Errorf("%s: %s, by the kernel: %t:\n%x", c.what, diff, byKernel, reply)
	}
	return byKernel
}
