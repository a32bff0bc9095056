// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// large has 4,000 addresses for each name, or 800 for a name of more than 200 bytes. It has no IPv6 address.
func large(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	end := 12
	for q[end] != 0 {
		end += 1 + int(q[end])
	}
	msg := append([]byte{0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end+5]...)
	n := 4000
	if end > 200 {
		n = 800
	}
	if binary.BigEndian.Uint16(q[end+1:]) == wire.TypeAAAA {
		binary.BigEndian.PutUint16(msg[8:], 1)
		msg = append(msg, 0xc0, 12, 0, 6, 0, 1, 0, 0, 1, 44, 0, 24, 0xc0, 12, 0xc0, 12)
		n = 0
		for range 5 {
			msg = append(msg, 0, 0, 1, 44)
		}
	}
	for i := range n {
		msg = append(msg, 0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, byte(i>>8), byte(i))
	}
	binary.BigEndian.PutUint16(msg[6:], uint16(n))
	respond(to, msg, nil, batch)
}

// A largeCase is a query with a large answer to restore.
type largeCase struct {
	name, asked, rewrite string
	rrtype               uint16
	records              int // over TCP
}

const longName = "x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x." +
	"x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x.x."

func largeCases() []largeCase {
	return []largeCase{
		{"alias", "large.shop.svc.cluster.local.", "", dns.TypeA, 4001},
		{"alias, many labels", "long.shop.svc.cluster.local.", "", dns.TypeA, 801},
		{"dns64", "large.example.", "", dns.TypeAAAA, 2339}, // what a message holds
		{"dns64, many labels", longName + "example.", "", dns.TypeAAAA, 800},
		{"rewritten", "large.old.example.", "suffix .old.example .example", dns.TypeA, 4000},
	}
}

func (l *largeCase) resolver(tb testing.TB) *resolve.Resolver {
	tb.Helper()
	s := shop(time.Now())
	for name, target := range map[string]string{"large": "large.example", "long": longName + "example"} {
		s.PutService(zone.Service{Namespace: "shop", Name: name, TTL: -1, Type: zone.ExternalName, ExternalName: target}, time.Now())
	}
	inSync(s)
	p := clusterPlan(tb, s, true)
	p.Routes[0].Upstream = asker(large)
	switch {
	case l.rewrite != "":
		rewriting(tb, p, l.rewrite)
	case l.rrtype == dns.TypeAAAA:
		making(tb, p, false)
	}
	return newResolver(tb, p)
}

// TestLarge checks that a large answer is truncated to the client's limit before it is restored.
func TestLarge(t *testing.T) {
	t.Parallel()
	for _, tt := range largeCases() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := tt.resolver(t)
			udp, tcp := newClient6(r), newClient6(r)
			tcp.from.Stream = true
			q := pack(t, question(tt.asked, tt.rrtype))
			for _, from := range []string{"upstream", "cache"} {
				few := unpack(t, udp.exchange(t, q))
				if !few.Truncated || len(few.Answer) < 8 || len(few.Answer) > 30 {
					t.Errorf("from %s over UDP: TC %t, %d records, want TC and what 512 bytes hold", from, few.Truncated, len(few.Answer))
				}
			}
			if walked := udp.worker.Walked(); walked > 30 {
				t.Errorf("%d records were walked for a reply of 512 bytes", walked)
			}
			if all := unpack(t, tcp.exchange(t, q)); len(all.Answer) != tt.records || all.Truncated != (tt.name == "dns64") {
				t.Errorf("over TCP: %d records, TC %t, want %d", len(all.Answer), all.Truncated, tt.records)
			}
		})
	}
}
