// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// TestSerial changes the zone in each way. The next denial has the new serial number.
func TestSerial(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	now, s := time.Now(), n.store
	service := zone.Service{Namespace: "shop", Name: "new", TTL: -1, Addrs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}}
	slice := zone.Slice{Namespace: "shop", Name: "db-7", Service: "db", Endpoints: []zone.Endpoint{{Addrs: service.Addrs, Ready: true}}}
	c := n.pods[0].dial(t, 0)
	denied := [][]byte{query("absent.shop.svc.cluster.local.", dns.TypeA), query("web.shop.svc.cluster.local.", dns.TypeMX)}
	for _, tt := range []struct {
		name   string
		change func()
	}{
		{"a Service", func() { s.PutService(service, now) }},
		{"no Service", func() { s.Delete(zone.Services, "shop", "new", now) }},
		{"a slice", func() { s.PutSlice(slice, now) }},
		{"a list without the slice", func() { s.Retain(zone.Slices, func(_, name string) bool { return name != "db-7" }, now) }},
		{"a namespace", func() { s.PutNamespace("new", now) }},
	} {
		for _, pkt := range denied {
			if !n.prime(t, c, pkt) {
				t.Fatalf("before %s: the kernel does not answer", tt.name)
			}
		}
		before := s.Serial()
		tt.change()
		for _, pkt := range denied {
			reply, _ := n.exchange(t, c, pkt)
			m := new(dns.Msg)
			assert.NoError(t, m.Unpack(reply))
			if serial := m.Ns[0].(*dns.SOA).Serial; serial != s.Serial() || serial == before {
				t.Errorf("%s: serial %d of %s, want %d, after %d", tt.name, serial, m.Question[0].Name, s.Serial(), before)
			}
		}
	}
}

// TestPanic has the source of an answer panic. It is counted, and the kernel goes on with other names.
func TestPanic(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	c := n.pods[0].dial(t, 0)
	n.await(t, "a panic that is counted", func() bool {
		n.exchange(t, c, query(panicName, dns.TypeA))
		return n.kernel.Stats().Panics > 0
	})
	if !n.prime(t, c, query("www.test.", dns.TypeA)) {
		t.Error("the kernel does not answer another name")
	}
}
