// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/zone"
)

// canonical is the wire form of a name in lower case.
func canonical(tb testing.TB, name string) []byte {
	tb.Helper()
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(dns.CanonicalName(name), buf, 0, nil, false)
	if err != nil {
		tb.Fatalf("packing %q: %v", name, err)
	}
	return buf[:n]
}

// presented is the name of a wire form, empty for none.
func presented(tb testing.TB, name []byte) string {
	tb.Helper()
	if name == nil {
		return ""
	}
	text, end, err := dns.UnpackDomainName(name, 0)
	if err != nil || end != len(name) {
		tb.Fatalf("name %x: %v, %d octets of it", name, err, end)
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
		if have := presented(t, zone.Owner(name, domain)); have != tt.want {
			t.Errorf("%s: owner %q, want %q", tt.name, have, tt.want)
		}
		if n := testing.AllocsPerRun(10, func() { zone.Owner(name, domain) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", tt.name, n)
		}
	}
}

// ownerByLabels is Owner by a reader of names that is not ours.
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
				return // no canonical name
			}
		}
		have := presented(t, zone.Owner(name, domain))
		if want := ownerByLabels(presented(t, name), presented(t, domain)); have != want {
			t.Errorf("%s below %s: owner %q, want %q", presented(t, name), presented(t, domain), have, want)
		}
	})
}

func BenchmarkOwner(b *testing.B) {
	domain := canonical(b, "cluster.local.")
	for _, name := range []string{"_http._tcp.web.shop.svc.cluster.local.", "www.example.com.", "1.0.96.10.in-addr.arpa."} {
		wire := canonical(b, name)
		b.Run(fmt.Sprintf("%.4s", name), func(b *testing.B) {
			for b.Loop() {
				zone.Owner(wire, domain)
			}
		})
	}
}
