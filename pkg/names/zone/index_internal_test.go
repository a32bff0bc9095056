// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestWrongCandidates adds numbers under wrong hashes, as two keys with one hash do, or as a reader sees between two
// writes.
func TestWrongCandidates(t *testing.T) {
	t.Parallel()
	s, now := NewStore(), time.Unix(1_800_000_000, 0)
	addr := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	s.PutNamespace("ns", now)
	s.PutService(Service{Namespace: "ns", Name: "a", Addrs: []netip.Addr{addr(1)}, TTL: -1}, now)
	s.PutService(Service{Namespace: "ns", Name: "h", Type: Headless, TTL: -1}, now)
	s.PutSlice(Slice{Namespace: "ns", Name: "s", Service: "h", Endpoints: []Endpoint{{Addrs: []netip.Addr{addr(2)}, Ready: true}}}, now)
	s.PutPod(Pod{Namespace: "ns", Name: "p", Addrs: []netip.Addr{addr(3)}}, now)
	other := addr(9).AsSlice()
	for id := range uint32(40) { // including unused numbers
		s.nodesByAddr.add(s.hash(other), id)
		s.slicesByAddr.add(s.hash(other), id)
		s.podsByAddr.add(s.hash(other), id)
		s.nodes.byKey.add(s.hash(nodeKey(nil, "ns", "b")), id)
		s.namespaces.byKey.add(s.hash([]byte("\x02no")), id)
	}
	s.slices.byKey.add(s.objectHash("ns", "t"), 0)
	s.pods.byKey.add(s.objectHash("ns", "q"), 0)
	s.Expect(Services, Slices, Namespaces, Pods)
	for k := range Kind(kindCount) {
		s.SetSynced(k)
		s.SetAlwaysFresh(k)
	}
	z, err := New(Config{Store: s, Domain: "c.", Pods: PodsVerified, AllSlices: true, ReverseZones: []string{"10.in-addr.arpa."}})
	assert.NoError(t, err)
	one := Zones{z}
	for _, name := range []string{
		"\x019\x010\x010\x0210\x07in-addr\x04arpa\x00", "\x01b\x02ns\x03svc\x01c\x00", "\x0810-0-0-9\x02ns\x03pod\x01c\x00", "\x02no\x03svc\x01c\x00",
	} {
		var q wire.Query
		q.Parse([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name + "\x00\x0c\x00\x01"))
		if dst, res := one.Answer(&q, Client{MaxSize: wire.MaxMessage, Rotation: 0}, now, nil); res.Verdict != Answered || dst[3] != wire.RcodeNXDomain {
			t.Errorf("%q: verdict %d, message %x; want NXDOMAIN", name, res.Verdict, dst)
		}
	}
	if s.Delete(Slices, "ns", "t", now) || s.Delete(Pods, "ns", "q", now) {
		t.Error("an object was deleted under another name")
	}
}

// TestIndexRemoval adds, changes and removes objects, after which the indexes are empty.
func TestIndexRemoval(t *testing.T) {
	t.Parallel()
	s, now := NewStore(), time.Unix(1_800_000_000, 0)
	for round := range 20 {
		for i := range 300 {
			addrs := []netip.Addr{netip.AddrFrom4([4]byte{10, byte(round), byte(i >> 8), byte(i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x:%x", round, i))}
			name := fmt.Sprint("n", i)
			s.PutNamespace(name, now)
			s.PutService(Service{Namespace: name, Name: "a", Addrs: addrs, TTL: -1}, now)
			s.PutSlice(Slice{Namespace: name, Name: "s", Service: fmt.Sprint("a", round%3), Endpoints: []Endpoint{{Addrs: addrs}, {Addrs: addrs, Hostname: "h"}}}, now)
			s.PutPod(Pod{Namespace: name, Name: "p", Addrs: addrs}, now)
		}
	}
	full := s.Stats().Index
	if full > 300*7*2*8*4 {
		t.Errorf("indexes of %d bytes after 20 rounds of the same 300 names", full)
	}
	for k := range Kind(kindCount) {
		s.Retain(k, func(string, string) bool { return false }, now)
	}
	for name, x := range map[string]*hashIndex{
		"nodesByName": &s.nodes.byKey, "nodesByAddr": &s.nodesByAddr, "slicesByAddr": &s.slicesByAddr, "podsByAddr": &s.podsByAddr,
		"spacesByName": &s.namespaces.byKey, "slicesByName": &s.slices.byKey, "podsByName": &s.pods.byKey,
	} {
		if x.live != 0 || x.size() > 64*8 {
			t.Errorf("%s: %d entries in %d bytes are left", name, x.live, x.size())
		}
	}
	for n := range s.nodes.all() {
		t.Errorf("node %q is left", n.key)
	}
}
