// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
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

// A recorder records a store's notifications.
type recorder struct {
	tb     testing.TB
	owners []string
	total  uint64
}

// An ownerFunc is an Observer of owners only.
type ownerFunc func(owner []byte)

func (f ownerFunc) Changing()                 {}
func (f ownerFunc) OwnerChanged(owner []byte) { f(owner) }
func (f ownerFunc) Changed()                  {}

// listen observes the store below cluster.local.
func listen(tb testing.TB, s *zone.Store) *recorder {
	tb.Helper()
	l := &recorder{tb: tb}
	s.Observe([][]byte{canonical(tb, "cluster.local.")}, ownerFunc(func(owner []byte) {
		l.owners = append(l.owners, presented(tb, owner))
		l.total++
	}))
	return l
}

// take returns the owners since the last call, sorted and without the domain.
func (r *recorder) take() []string {
	var list []string
	for _, owner := range r.owners {
		list = append(list, strings.TrimSuffix(owner, ".cluster.local."))
	}
	r.owners = nil
	slices.Sort(list)
	return list
}

func TestObserve(t *testing.T) {
	t.Parallel()
	s, now := zone.NewStore(), epoch()
	l := listen(t, s)
	web := zone.Service{Namespace: "shop", Name: "web", Addrs: addrs("10.96.0.1", "::1"), Ports: []zone.Port{{Name: "http", Number: 80}}, TTL: -1}
	db := zone.Service{Namespace: "shop", Name: "db", Type: zone.Headless, TTL: -1}
	const web6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa."
	const web4, other4 = "1.0.96.10.in-addr.arpa.", "234.56.96.10.in-addr.arpa."
	one, two, three := ready("10.0.0.1"), ready("10.0.0.2"), ready("10.0.0.3", "::1")
	one.Hostname = "db-0"
	slice := func(service string, endpoints ...zone.Endpoint) func() {
		return func() {
			s.PutSlice(zone.Slice{Namespace: "shop", Name: "db-1", Service: service, Endpoints: endpoints}, now)
		}
	}
	put := func(svc *zone.Service, change func()) func() {
		return func() {
			if change != nil {
				change()
			}
			s.PutService(*svc, now)
		}
	}
	tests := []struct {
		name string
		do   func()
		want []string
	}{
		{"the first service of a namespace", put(&web, nil), []string{web6, web4, "shop.pod", "shop.svc", "web.shop.svc"}},
		{"the same", put(&web, nil), nil},
		{"its Namespace", func() { s.PutNamespace("shop", now) }, []string{"shop.pod", "shop.svc"}},
		{"the same Namespace", func() { s.PutNamespace("shop", now) }, nil},
		{"another port", put(&web, func() { web.Ports[0].Number = 81 }), []string{"web.shop.svc"}},
		{"another IPv4 address", put(&web, func() { web.Addrs[0] = netip.MustParseAddr("10.96.56.234") }), []string{web4, other4, "web.shop.svc"}},
		{"a second service", put(&db, nil), []string{"db.shop.svc"}},
		{"a slice", slice("db", one, two), []string{"1.0.0.10.in-addr.arpa.", "2.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"the same slice", slice("db", two, one), nil},
		{"one goes, one comes", slice("db", one, three), []string{web6, "2.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"one of its two addresses goes", slice("db", one, ready("::1")), []string{"3.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"and comes again", slice("db", one, three), []string{"3.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"one is not ready", func() {
			one.Ready = false
			slice("db", one, three)()
		}, []string{"1.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"one has another name", func() {
			one.Hostname = "db-1"
			slice("db", one, three)()
		}, []string{"1.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"one is in another topology zone", func() {
			three.Zone = "east"
			slice("db", one, three)()
		}, []string{"db.shop.svc"}},
		{"not ready is published", put(&db, func() { db.PublishNotReady = true }), []string{web6, "1.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"another TTL", put(&db, func() { db.TTL = time.Minute }), []string{"db.shop.svc"}},
		{"an alias", put(&db, func() { db.Type, db.ExternalName = zone.ExternalName, "example.com" }), []string{web6, "1.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "db.shop.svc"}},
		{"another alias", put(&db, func() { db.ExternalName = "example.net" }), []string{"db.shop.svc"}},
		{"the slice is of another service", slice("web", one, three), []string{
			web6, web6, "1.0.0.10.in-addr.arpa.", "1.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "db.shop.svc", "web.shop.svc",
		}},
		{"the slice goes", func() { s.Delete(zone.Slices, "shop", "db-1", now) }, []string{web6, "1.0.0.10.in-addr.arpa.", "3.0.0.10.in-addr.arpa.", "web.shop.svc"}},
		{"again", func() { s.Delete(zone.Slices, "shop", "db-1", now) }, nil},
		{"a pod", func() { s.PutPod(zone.Pod{Namespace: "shop", Name: "p", Addrs: addrs("10.0.0.9")}, now) }, []string{"shop.pod"}},
		{"one service goes", func() { s.Delete(zone.Services, "shop", "db", now) }, []string{"db.shop.svc"}},
		{"the Namespace goes", func() { s.Delete(zone.Namespaces, "", "shop", now) }, []string{"shop.pod", "shop.svc"}},
		{"the other service goes", func() { s.Retain(zone.Services, func(string, string) bool { return false }, now) }, []string{web6, other4, "shop.pod", "shop.svc", "web.shop.svc"}},
	}
	for _, tt := range tests {
		tt.do()
		assert.Same(t, tt.name, tt.want, l.take())
	}
	if notified := s.Stats().Notified; notified != l.total || notified == 0 {
		t.Errorf("%d notifications counted, %d recorded", notified, l.total)
	}
	s.Observe([][]byte{canonical(t, "other.test.")}, ownerFunc(func(owner []byte) { l.owners = append(l.owners, presented(t, owner)) }))
	s.PutService(db, now)
	assert.Same(t, "of another domain", []string{"db.shop.svc.other.test.", "shop.pod.other.test.", "shop.svc.other.test."}, l.take())
	s.Observe(nil, nil)
	s.Delete(zone.Services, "shop", "db", now)
	assert.Same(t, "without an observer", []string(nil), l.take())
}

func addrs(list ...string) []netip.Addr {
	var parsed []netip.Addr
	for _, s := range list {
		parsed = append(parsed, netip.MustParseAddr(s))
	}
	return parsed
}

func ready(list ...string) zone.Endpoint { return zone.Endpoint{Addrs: addrs(list...), Ready: true} }

// A fact is the zone's answer to a question, as far as the question's owner determines it.
type fact struct {
	Rcode  string
	Answer []string
}

// factOf asks for the data of the owner, which does not include the target of an alias.
func (h *harness) factOf(name string, rrtype uint16) fact {
	said := ask(h.t, h.zone, name, rrtype, 0, h.now)
	f := fact{Rcode: said.Rcode, Answer: said.Answer}
	for _, record := range said.Answer {
		if strings.Contains(record, " CNAME ") && strings.HasPrefix(record, strings.ToLower(name)+" ") {
			return fact{Rcode: "alias", Answer: []string{record}}
		}
	}
	return f
}

// contested reports whether several services have the address of the reverse name: each of them is a valid answer.
func (h *harness) contested(name string) bool {
	a, _ := reverseAddr(name)
	holders := 0
	for _, svc := range h.model.services {
		if svc.Type == zone.ClusterIP && slices.ContainsFunc(svc.Addrs, func(o netip.Addr) bool { return o.IsValid() && o.Unmap() == a }) {
			holders++
		}
	}
	return holders > 1
}

// TestObserverCoversEveryChange makes random changes, and checks each name whose
// answer differs afterwards: its owner was reported, and an observer that queried the name then got
// the new answer.
func TestObserverCoversEveryChange(t *testing.T) {
	t.Parallel()
	configs := []zone.Config{
		{TTL: 5 * time.Second, Pods: zone.PodsInsecure},
		{TTL: 5 * time.Second, Pods: zone.PodsInsecure, PodNames: true, IgnoreEmpty: true, NodeZone: "east"},
	}
	steps := proctest.OrdinaryOrSoak(40, 100)
	for i, cfg := range configs {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, uint64(40+i), cfg)
			w.observeSteps(steps)
		})
	}
}

// observeSteps makes that many changes and compares all answers after each.
func (h *harness) observeSteps(steps int) {
	h.t.Helper()
	domain := canonical(h.t, "cluster.local.")
	seen := map[string]fact{} // by owner: what an observer found
	h.store.Observe([][]byte{domain}, ownerFunc(func(owner []byte) {
		name := presented(h.t, owner)
		seen[name] = h.factOf(name, kindOf(name))
	}))
	list := observedNames()
	before, contested, changes := map[string]fact{}, map[string]bool{}, 0
	for step := range steps {
		clear(seen)
		h.step()
		freshen(h.store, h.now)
		for _, name := range list {
			now, owner := h.factOf(name, kindOf(name)), presented(h.t, zone.Owner(canonical(h.t, name), domain))
			diff := cmp.Diff(before[name], now)
			_, notified := seen[owner]
			skip := contested[name]
			contested[name] = h.contested(name)
			if skip = skip || contested[name]; step > 0 && diff != "" && !notified && !skip {
				h.t.Fatalf("step %d: %s changed, but its owner %q was not notified: %v\n%s", step, name, owner, seen, diff)
			}
			if diff != "" {
				changes++
			}
			before[name] = now
		}
		for owner, said := range seen {
			if diff := cmp.Diff(h.factOf(owner, kindOf(owner)), said); diff != "" && !contested[owner] {
				h.t.Fatalf("step %d: a reader notified of %s saw another state (-now +then):\n%s", step, owner, diff)
			}
		}
	}
	if changes < 4*steps {
		h.t.Errorf("%d answers changed in %d steps: too few to show anything", changes, steps)
	}
}

// kindOf returns the type of the question that covers most of a name.
func kindOf(name string) uint16 {
	switch {
	case strings.HasSuffix(name, ".arpa."):
		return dns.TypePTR
	case strings.HasPrefix(name, "_"):
		return dns.TypeSRV
	}
	return dns.TypeA
}

// observedNames returns the questions that depend on objects.
func observedNames() []string {
	var list []string
	for _, name := range questions() {
		if strings.HasSuffix(name, ".svc.cluster.local.") || strings.HasSuffix(name, ".pod.cluster.local.") || strings.HasSuffix(name, ".arpa.") {
			list = append(list, name)
		}
	}
	return list
}

// BenchmarkObserve covers the first list of a large cluster, and changes after it.
func BenchmarkObserve(b *testing.B) {
	domain, now := canonical(b, "cluster.local."), epoch()
	service := func(i int) zone.Service {
		return zone.Service{
			Namespace: fmt.Sprint("team-", i%50), Name: fmt.Sprint("service-", i), TTL: -1,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []zone.Port{{Name: "http", Number: 80}, {Name: "metrics", Number: 9090}},
		}
	}
	for _, observed := range []bool{false, true} {
		notified := 0
		listen := func(s *zone.Store) {
			if observed {
				s.Observe([][]byte{domain}, ownerFunc(func([]byte) { notified++ }))
			}
		}
		b.Run(fmt.Sprintf("11000 services/observed=%t", observed), func(b *testing.B) {
			for b.Loop() {
				s := zone.NewStore()
				listen(s)
				for i := range 11000 {
					s.PutService(service(i), now)
				}
			}
		})
		b.Run(fmt.Sprintf("slice of 100/observed=%t", observed), func(b *testing.B) {
			s := clusterOf(0, 1, 1)
			listen(s)
			sl := zone.Slice{Namespace: "team-0", Name: "headless-0-0", Service: "headless-0"}
			for i := range 100 {
				sl.Endpoints = append(sl.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{11, 0, 0, byte(i)})}, Ready: true})
			}
			for i := 0; b.Loop(); i++ {
				sl.Endpoints[i%100].Ready = !sl.Endpoints[i%100].Ready
				s.PutSlice(sl, now)
			}
		})
	}
}

// canonical returns the wire form of a name in lower case.
func canonical(tb testing.TB, name string) []byte {
	tb.Helper()
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf, 0, nil, false)
	if err != nil {
		tb.Fatalf("packing %q: %v", name, err)
	}
	return buf[:n]
}

// presented returns the name of a wire form, or "".
func presented(tb testing.TB, name []byte) string {
	tb.Helper()
	if name == nil {
		return ""
	}
	text, end, err := dns.UnpackDomainName(name, 0)
	if err != nil || end != len(name) {
		tb.Fatalf("name %x: %v, %d bytes of it", name, err, end)
	}
	return text
}

func TestOwner(t *testing.T) {
	const reverse6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa."
	tests := []struct{ name, want string }{
		{"web.shop.svc.cluster.local.", "web.shop.svc.cluster.local."},
		{"WEB.Shop.SVC.cluster.LOCAL.", "web.shop.svc.cluster.local."},
		{"a.web.shop.svc.cluster.local.", "web.shop.svc.cluster.local."},
		{"_http._tcp.web.shop.svc.cluster.local.", "web.shop.svc.cluster.local."},
		{"a.b.c.d.e.f.web.shop.svc.cluster.local.", "web.shop.svc.cluster.local."},
		{"svc.svc.svc.svc.cluster.local.", "svc.svc.svc.cluster.local."},
		{"shop.svc.cluster.local.", "shop.svc.cluster.local."},
		{"shop.pod.cluster.local.", "shop.pod.cluster.local."},
		{"10-0-0-1.shop.pod.cluster.local.", "shop.pod.cluster.local."},
		{"x.10-0-0-1.shop.pod.cluster.local.", "shop.pod.cluster.local."},
		{"svc.cluster.local.", ""},
		{"pod.cluster.local.", ""},
		{"cluster.local.", ""},
		{"dns-version.cluster.local.", ""},
		{"a.b.c.other.cluster.local.", ""},
		{"web.shop.svc.xcluster.local.", ""},
		{"web.shop.svc\\007cluster.local.", ""},
		{"web.shop.svcluster.local.", ""},
		{"web.shop.svc.cluster.local.example.", ""},
		{"local.", ""},
		{".", ""},
		{"www.example.com.", ""},
		{"1.0.96.10.in-addr.arpa.", "1.0.96.10.in-addr.arpa."},
		{reverse6, reverse6},
		{"0.96.10.in-addr.arpa.", ""},
		{"x.1.0.96.10.in-addr.arpa.", ""},
		{"01.0.96.10.in-addr.arpa.", ""},
		{reverse6[2:], ""},
		{"in-addr.arpa.", ""},
		{"lb._dns-sd._udp.0.0.10.in-addr.arpa.", ""},
	}
	domain := canonical(t, "cluster.local.")
	for _, tt := range tests {
		name := canonical(t, tt.name)
		assert.Same(t, tt.name+": owner", tt.want, presented(t, zone.Owner(name, domain)))
		assert.Equal(t, tt.name+": allocations", 0, testing.AllocsPerRun(10, func() { zone.Owner(name, domain) }))
	}
}

// ownerByLabels is Owner with another name parser.
func ownerByLabels(name, domain string) string {
	labels, below := dns.SplitDomainName(name), dns.SplitDomainName(domain)
	left := len(labels) - len(below)
	if len(below) == 0 || left < 0 || !slices.Equal(labels[left:], below) {
		if a, _ := reverseAddr(name); a.IsValid() {
			return name
		}
		return ""
	}
	from := -1
	switch {
	case left >= 3 && labels[left-1] == "svc":
		from = left - 3
	case left == 2 && labels[1] == "svc", left >= 2 && labels[left-1] == "pod":
		from = left - 2
	}
	if from < 0 {
		return ""
	}
	return strings.Join(labels[from:], ".") + "."
}

func FuzzOwner(f *testing.F) {
	for i, name := range questions() {
		if i%7 == 0 {
			f.Add(canonical(f, name), canonical(f, "cluster.local."))
		}
	}
	f.Add(canonical(f, "a.svc."), canonical(f, "."))
	f.Add(canonical(f, "web.shop.svc.x.svc.y."), canonical(f, "x.svc.y."))
	f.Add(canonical(f, "1.0.0.10.in-addr.arpa."), canonical(f, "10.in-addr.arpa."))
	f.Add([]byte("\x02a\x03svc\x01x\x00"), canonical(f, "x."))
	f.Fuzz(func(t *testing.T, name, domain []byte) {
		for _, n := range [][]byte{name, domain} {
			_, end, err := dns.UnpackDomainName(n, 0)
			if err != nil || end != len(n) || slices.ContainsFunc(n, func(c byte) bool { return c >= 'A' && c <= 'Z' || c >= 0xc0 }) {
				return // not a canonical name
			}
		}
		have := presented(t, zone.Owner(name, domain))
		if want := ownerByLabels(presented(t, name), presented(t, domain)); have != want {
			t.Errorf("%s below %s: owner %q, want %q", presented(t, name), presented(t, domain), have, want)
		}
	})
}
