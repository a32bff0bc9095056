// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// A harness is a store and a model of it, with few names, so that random operations affect each other.
type harness struct {
	t     testing.TB
	rnd   *rand.Rand
	store *zone.Store
	zone  *zone.Zone // the first one
	more  zone.Zones // the others of a process
	set   *harness   // of a cluster set; nil: none
	model *model
	now   time.Time
}

func newHarness(tb testing.TB, seed uint64, cfg zone.Config) *harness {
	tb.Helper()
	cfg.Store = zone.NewStore()
	cfg.Domain = "cluster.local."
	switch {
	case cfg.External:
		cfg.Domain = "example.org."
	case cfg.Cluster != nil:
		cfg.Domain = "clusterset.local."
	}
	cfg.AllSlices = true
	cfg.Nameservers = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}
	if !cfg.External && cfg.Cluster == nil {
		cfg.ReverseZones = []string{"10.in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa."}
	}
	z, err := zone.New(cfg)
	assert.NoError(tb, err)
	w := &harness{t: tb, rnd: rand.New(rand.NewPCG(seed, 7)), store: cfg.Store, zone: z, model: newModel(cfg), now: epoch()}
	freshen(cfg.Store, w.now)
	return w
}

// newProcess returns a harness of all zones that a process may have: those of a cluster with federations, of its set, and of
// external names.
func newProcess(tb testing.TB, seed uint64, cfg zone.Config) *harness {
	tb.Helper()
	cfg.Federations = []zone.Federation{{Name: "myfed", Suffix: "a.East.example.com."}, {Name: "default", Suffix: "cluster.local."}}
	w := newHarness(tb, seed, cfg)
	cfg.Federations, cfg.Pods, cfg.Cluster = nil, zone.PodsDisabled, w.store
	w.set = newHarness(tb, seed, cfg)
	cfg.Cluster, cfg.External, cfg.Headless = nil, true, seed%2 == 0
	outside := newHarness(tb, seed, cfg)
	cfg = outside.model.cfg
	cfg.Store = w.store
	z, err := zone.New(cfg)
	assert.NoError(tb, err)
	w.more = zone.Zones{w.set.zone, z}
	w.model.zones = []*model{w.model, w.set.model, outside.model}
	w.set.model.namespaces = w.model.namespaces
	outside.model.services, outside.model.slices, outside.model.namespaces = w.model.services, w.model.slices, w.model.namespaces
	for _, m := range w.model.zones {
		m.zones = w.model.zones
	}
	return w
}

func (h *harness) zones() zone.Zones { return append(zone.Zones{h.zone}, h.more...) }

// freshen makes the store synced and fresh.
func freshen(s *zone.Store, now time.Time) {
	s.Expect(zone.Services, zone.Slices, zone.Namespaces, zone.Pods)
	for k := zone.Services; k <= zone.Pods; k++ {
		s.SetSynced(k)
		s.ConfirmFresh(k, now)
	}
}

func pick[T any](w *harness, list []T) T { return list[w.rnd.IntN(len(list))] }

// some returns up to n of the list, perhaps one twice.
func some[T any](w *harness, list []T, n int) []T {
	var picked []T
	for range w.rnd.IntN(n + 1) {
		picked = append(picked, pick(w, list))
	}
	return picked
}

func namespaces() []string { return []string{"shop", "default", "kube-system"} }
func names() []string      { return []string{"web", "db", "_tcp", "a"} }
func topologies() []string {
	return []string{"", "east", "West-1", "a.b", "..", strings.Repeat("z", 64)}
}

func hostnames() []string {
	return []string{"", "", "db-0", "DB-1", "tcp", "_zone", "10-0-0-1", strings.Repeat("h", 63), strings.Repeat("h", 64), "nul\x00", "dot.ted"}
}

func addresses() []netip.Addr {
	list := []netip.Addr{{}}
	for _, s := range []string{"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.3", "192.0.2.9", "2001:db8::", "2001:db8::1", "::1", "10.255.0.0"} {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

func ports() []zone.Port {
	return []zone.Port{
		{Name: "http", Number: 80},
		{Name: "HTTP", Protocol: zone.UDP, Number: 80},
		{Name: "dns", Protocol: zone.UDP, Number: 53},
		{Name: "dns", Number: 53},
		{Number: 9},
		{Name: "none"},
		{Name: strings.Repeat("p", 64), Protocol: zone.SCTP, Number: 7},
	}
}

func targets() []string {
	return []string{
		"example.com", "Example.com.", "web.shop.svc.cluster.local", "db.shop.svc.cluster.local.", "a.default.svc.CLUSTER.local",
		"missing.shop.svc.cluster.local", "10.0.0.1", "::1", "", ".", "a..b", strings.Repeat("l", 64) + ".com",
		strings.Repeat("long.", 50), strings.Repeat("long.", 51), "cluster.local", "1.0.0.10.in-addr.arpa", "sp ace", "svc.cluster.local", "elsewhere.cluster.local",
		"ns.dns.cluster.local", "web.shop.example.org", "db.shop.Example.org", "none.shop.example.org",
	}
}

func (h *harness) service() zone.Service {
	ttl := pick(h, []time.Duration{-1, -1, 0, 30 * time.Second, 2 * time.Hour})
	svc := zone.Service{
		Namespace: pick(h, namespaces()), Name: pick(h, names()), Type: zone.ServiceType(h.rnd.IntN(4)),
		PublishNotReady: h.rnd.IntN(3) == 0, TTL: ttl, Ports: some(h, ports(), 4),
	}
	switch h.rnd.IntN(3) {
	case 0:
		svc.ExternalAddrs, svc.ExternalHost = some(h, addresses(), 3), pick(h, targets())
	case 1:
		svc.ExternalHost = pick(h, targets())
	}
	switch svc.Type {
	case zone.ClusterIP:
		svc.Addrs = some(h, addresses(), 3)
	case zone.ExternalName:
		svc.ExternalName = pick(h, targets())
	case zone.Headless, zone.Unselected:
	}
	if h.model.cfg.Cluster != nil && svc.Type != zone.ClusterIP {
		svc.Type = zone.Headless
	}
	return svc
}

func (h *harness) slice() zone.Slice {
	s := zone.Slice{
		Namespace: pick(h, namespaces()), Name: fmt.Sprint("slice-", h.rnd.IntN(6)), Service: pick(h, append(names(), "")), Ports: some(h, ports(), 3),
	}
	hosts := hostnames()
	if h.model.cfg.Cluster != nil { // the API server refuses underscores, which the names of ports have here
		s.Cluster = pick(h, []string{"east", "West", "tcp", "c-1"})
		hosts = slices.DeleteFunc(hosts, func(name string) bool { return strings.HasPrefix(name, "_") })
	}
	for range h.rnd.IntN(5) {
		s.Endpoints = append(s.Endpoints, zone.Endpoint{
			Addrs: some(h, addresses(), 3), Hostname: pick(h, hosts), Pod: pick(h, []string{"", "pod-1", "pod.2", "db-0"}),
			Zone: pick(h, topologies()), Ready: h.rnd.IntN(3) > 0,
		})
	}
	return s
}

// step applies one random operation to both.
func (h *harness) step() {
	h.now = h.now.Add(time.Duration(h.rnd.IntN(3000)) * time.Millisecond)
	m := h.model
	m.changed()
	if h.set != nil && h.rnd.IntN(3) == 0 {
		h.set.step()
		return
	}
	operations := 14
	if m.cfg.Cluster != nil {
		operations = 10 // it has no pods, and the namespaces of the cluster
	}
	id := object{pick(h, namespaces()), pick(h, names())}
	switch h.rnd.IntN(operations) {
	case 0, 1, 2, 3:
		svc := h.service()
		h.store.PutService(svc, h.now)
		m.services[object{svc.Namespace, svc.Name}] = svc
	case 4, 5, 6, 7:
		s := h.slice()
		h.store.PutSlice(s, h.now)
		m.slices[object{s.Namespace, s.Name}] = s
	case 8:
		h.store.Delete(zone.Services, id.namespace, id.name, h.now)
		delete(m.services, id)
	case 9:
		id.name = fmt.Sprint("slice-", h.rnd.IntN(6))
		h.store.Delete(zone.Slices, id.namespace, id.name, h.now)
		delete(m.slices, id)
	case 10:
		p := zone.Pod{Namespace: id.namespace, Name: id.name, Addrs: some(h, addresses(), 2)}
		h.store.PutPod(p, h.now)
		m.pods[id] = p
	case 11:
		h.store.Delete(zone.Pods, id.namespace, id.name, h.now)
		delete(m.pods, id)
	case 12:
		if h.rnd.IntN(2) == 0 {
			h.store.PutNamespace(id.namespace, h.now)
			m.namespaces[id.namespace] = true
		} else {
			h.store.Delete(zone.Namespaces, "", id.namespace, h.now)
			delete(m.namespaces, id.namespace)
		}
	case 13:
		h.retain()
	}
}

// retain keeps a random part of one kind.
func (h *harness) retain() {
	drop := pick(h, names())
	drops := func(_, name string) bool { return name != drop && name != "slice-1" && name != "default" }
	m := h.model
	kind := zone.Kind(h.rnd.IntN(4))
	h.store.Retain(kind, drops, h.now)
	switch kind {
	case zone.Services:
		keep(m.services, drops)
	case zone.Slices:
		keep(m.slices, drops)
	case zone.Pods:
		keep(m.pods, drops)
	case zone.Namespaces:
		delete(m.namespaces, "default")
	case zone.Imports, zone.ImportSlices: // no store has them
	}
}

func keep[T any](objects map[object]T, f func(namespace, name string) bool) {
	for id := range objects {
		if !f(id.namespace, id.name) {
			delete(objects, id)
		}
	}
}

// externalQuestions returns all names of an external zone that may differ.
func externalQuestions() []string {
	list := renamed(questions(), "svc.cluster.local.", "cluster.local.", "cluster.local.", "example.org.")
	return append(list, "ns1.dns.example.org.", "x.ns1.dns.example.org.", "hostmaster.dns.example.org.")
}

// processQuestions returns all names of the zones of newProcess that may differ.
func processQuestions() []string {
	list := slices.Concat(questions(), externalQuestions())
	for _, cluster := range []string{"", "east.", "west.", "tcp.", "none."} {
		list = append(list, renamed(questions(), "web.", cluster+"web.", "db.", cluster+"db.", "cluster.local.", "clusterset.local.")...)
	}
	list = append(list, federatedQuestions()...)
	slices.Sort(list)
	return slices.Compact(list)
}

// federatedQuestions returns the names of the federations of newProcess, and some beside them.
func federatedQuestions() (list []string) {
	for _, namespace := range append(namespaces(), "none") {
		for _, name := range append(names(), "none", strings.Repeat("n", 63)) {
			for _, federation := range []string{"myfed", "default", "other"} {
				list = append(list, name+"."+namespace+"."+federation+".svc.cluster.local.")
			}
		}
	}
	return list
}

// renamed returns the names with each old text replaced by the new one behind it.
func renamed(list []string, oldNew ...string) []string {
	for i, name := range list {
		list[i] = strings.NewReplacer(oldNew...).Replace(name)
	}
	return list
}

// questions returns all names that may differ.
func questions() []string {
	const d = "cluster.local."
	list := []string{d, "svc." + d, "pod." + d, "dns." + d, "ns.dns." + d, "x.ns.dns." + d, "dns-version." + d, "x." + d, "local.", "xcluster.local."}
	below := []string{
		"", "10-0-0-1.", "10-0-0-2.", "10-0-0-3.", "192-0-2-9.", "2001-db8--0.", "2001-db8--.", "2001-db8--1.", "--1.", "2001-DB8-0--1.",
		"db-0.", "Db-1.", "tcp.", "_tcp.", "_udp.", "_sctp.", "_zone.", "_none.", "pod-1.", strings.Repeat("h", 63) + ".", "nul\\000.",
		"_http._tcp.", "http.tcp.", "_HTTP._udp.", "_dns._udp.", "_dns._tcp.", "_none._tcp.", "_._tcp.", "_http._sctp.", "www.google.",
		"pin._zone.", "prefer._zone.", "other._zone.", "east.pin._zone.", "west-1.PIN._zone.", "a.b.pin._zone.", "east.prefer._zone.", "north.prefer._zone.",
		"north.pin._zone.", "east.other._zone.", "a\\.b.pin._zone.", "x._http._tcp.", "a.b.c.d.",
	}
	for _, ns := range append(namespaces(), "none") {
		list = append(list, ns+".svc."+d, ns+".pod."+d)
		for _, name := range append(names(), "none") {
			for _, b := range below {
				list = append(list, b+name+"."+ns+".svc."+d)
			}
		}
		for _, p := range []string{"10-0-0-1", "10-0-0-3", "010-0-0-1", "2001-db8--", "2001-db8--1", "2001-0db8-0-0-0-0-0-1", "--ffff-10-0-0-1", "--ffff-a00-1", "1-2-3", "x", "x.10-0-0-1", "256-1-1-1"} {
			list = append(list, p+"."+ns+".pod."+d)
		}
	}
	for _, a := range append(addresses()[1:], netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("2001:db9::9")) {
		name, _ := dns.ReverseAddr(a.Unmap().String())
		list = append(list, name, "x."+name, name[strings.Index(name, ".")+1:])
	}
	return append(list, "01.0.0.10.in-addr.arpa.", "in-addr.arpa.", "ip6.arpa.", "example.com.", ".")
}

// compare compares both for every question.
func (h *harness) compare(step int, list []string) {
	h.t.Helper()
	for _, name := range list {
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT, dns.TypeNS, dns.TypeSOA, dns.TypeHTTPS} {
			h.compareOne(step, name, rrtype)
		}
	}
}

func (h *harness) compareOne(step int, name string, rrtype uint16) {
	h.t.Helper()
	have := askZones(h.t, h.zones(), packet(h.t, h.mixed(name), rrtype), h.rnd.Uint32(), h.now)
	want := h.model.answer(name, rrtype)
	if h.model.shared(name) && len(have.Answer) == 1 && slices.Contains(want.Answer, have.Answer[0]) {
		want.Answer = have.Answer // several services with one address: each is valid
	}
	if diff := cmp.Diff(normal(want), normal(have)); diff != "" {
		h.t.Fatalf("step %d: %s %s (-want +got):\n%s", step, name, dns.TypeToString[rrtype], diff)
	}
}

// mixed returns the name with letters in random case.
func (h *harness) mixed(name string) string {
	mixed := []byte(name)
	for i, c := range mixed {
		if h.rnd.IntN(2) == 0 && c >= 'a' && c <= 'z' {
			mixed[i] = c - 'a' + 'A'
		}
	}
	return string(mixed)
}

// normal replaces empty lists by nil.
func normal(g got) got {
	for _, list := range []*[]string{&g.Answer, &g.Ns, &g.Extra} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return g
}

func TestStoreAgainstModel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  zone.Config
	}{
		{name: "plain", cfg: zone.Config{TTL: 5 * time.Second, Pods: zone.PodsInsecure}},
		{name: "pod names, verified pods", cfg: zone.Config{TTL: 10 * time.Minute, Pods: zone.PodsVerified, PodNames: true, NodeZone: "east"}},
		{name: "empty services ignored, namespaces chosen", cfg: zone.Config{IgnoreEmpty: true, Namespaces: []string{"shop", "default"}, NodeZone: "a.b"}},
		{name: "declared namespaces only", cfg: zone.Config{TTL: 5 * time.Second, Pods: zone.PodsInsecure, KnownNamespaces: true}},
		{name: "external", cfg: zone.Config{External: true, TTL: 5 * time.Second}},
		{name: "external, headless too", cfg: zone.Config{External: true, Headless: true, PodNames: true, NodeZone: "east", Namespaces: []string{"shop", "default"}}},
		{name: "external, the rest elsewhere", cfg: zone.Config{External: true, Headless: true, Fallthrough: []string{"example.org."}, TTL: 10 * time.Minute}},
	}
	steps := proctest.OrdinaryOrSoak(64, 160)
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, uint64(i), tt.cfg)
			list := questions()
			if tt.cfg.External {
				list = externalQuestions()
			}
			for step := range steps {
				w.step()
				if step%16 == 0 {
					freshen(w.store, w.now)
					w.compare(step, list)
				} else {
					freshen(w.store, w.now)
					for range 30 {
						w.compareOne(step, pick(w, list), pick(w, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR}))
					}
				}
			}
		})
	}
}
