// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A variant is one configuration of both servers.
type variant struct {
	name     string
	domains  []string // cluster.local if empty
	coredns  []string // options of the plugin kubernetes
	settings []string // of our cluster section
	full     bool     // every type is asked for; else those that the options can change
}

// ranges make the reverse names of our objects ours, as the zones in-addr.arpa and ip6.arpa are CoreDNS's.
const ranges = "ranges: [0.0.0.0/0, \"::/0\"]"

func variants() []variant {
	return []variant{
		{name: "defaults", coredns: []string{"pods insecure", "zonal"}, settings: []string{ranges}, full: true},
		{
			name: "pods verified, named by pod", coredns: []string{"pods verified", "zonal", "endpoint_pod_names"},
			settings: []string{"pods: verified", "endpointNames: pod", ranges},
		},
		{
			name: "pods disabled, no empty services, 30 s", coredns: []string{"zonal", "ignore empty_service", "ttl 30"},
			settings: []string{"pods: disabled", "ignoreEmptyService: true", "ttl: 30s", ranges},
		},
		{
			name: "namespaces, no TTL", coredns: []string{"pods insecure", "zonal", "namespaces chosen 0-9 dns nowhere", "ttl 0"},
			settings: []string{"namespaces: [chosen, 0-9, dns, nowhere]", "ttl: 0s", ranges},
		},
		{
			name: "chosen namespaces", coredns: []string{"pods insecure", "zonal", "namespace_labels picked=yes"},
			settings: []string{"namespaceSelector: picked=yes", ranges},
		},
		{
			name: "chosen services", coredns: []string{"pods insecure", "zonal", "labels picked=yes"},
			settings: []string{"serviceSelector: picked=yes", ranges},
		},
		{
			name: "no endpoints, an hour", coredns: []string{"pods insecure", "noendpoints", "ttl 3600"},
			settings: []string{"endpoints: none", "ttl: 1h", ranges},
		},
		{
			name: "the second of two domains", domains: []string{"corp.k8s", "cluster.local"}, coredns: []string{"pods insecure", "zonal"},
			settings: []string{"domains: [cluster.local]", ranges},
		},
		{name: "other reverse names elsewhere", coredns: []string{"pods insecure", "zonal", "fallthrough in-addr.arpa ip6.arpa"}},
	}
}

// allTypes are asked for where every type is, the first of them always.
func allTypes() (few, all []uint16) {
	few = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR}
	return few, append(slices.Clip(few), dns.TypeTXT, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeMX, dns.TypeHTTPS, dns.TypeANY,
		dns.TypeSVCB, dns.TypeDS, dns.TypeNAPTR, dns.TypeAXFR, dns.TypeIXFR, 65400)
}

// TestDifferential takes all the processors there are, and its variants come one after the other: it is not parallel.
func TestDifferential(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: true})
	objects := clusterObjects()
	kubetest.Apply(t, c, objects...)
	waitForSlices(t, c, objects)
	d := differential{
		cluster: c, upstream: startUpstream(t),
		total: tally{reasons: map[string]int{}},
	}
	list := subjects(append(objects, apiService()))
	for i, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			p := d.start(t, &v)
			d.variants++
			d.compare(t, p, list, v.full)
			if i > 0 {
				return
			}
			// The first servers see the cluster change, the others find it changed.
			after := change(t, c, objects)
			kubetest.Apply(t, c, sentinels()...)
			p.waitForSentinels(t)
			list = subjects(slices.Concat(after, sentinels(), objects, []runtime.Object{apiService()}))
			d.compare(t, p, list, false)
		})
	}
	t.Logf("in all: %s", &d.total)
	for _, listed := range differences() {
		if d.variants == len(variants()) && d.total.reasons[listed.name] == 0 {
			t.Errorf("the difference %q is listed and does not occur", listed.name)
		}
	}
}

// A differential is a run of the test.
type differential struct {
	cluster  *kubetest.Cluster
	upstream netip.AddrPort
	total    tally
	variants int // that ran
}

// start runs both servers in the variant until the test ends.
func (d *differential) start(t *testing.T, v *variant) serverPair {
	t.Helper()
	domains := v.domains
	if len(domains) == 0 {
		domains = []string{"cluster.local"}
	}
	resolver := startReady(t, settings{
		command: "resolver", root: d.upstream, more: "clusterDomain: " + domains[0],
		cluster: append(v.settings, kubeconfig(d.cluster.Kubeconfig(kubetest.Admin))),
	})
	return serverPair{coredns: startCoreDNS(t, d.cluster, d.upstream, strings.Join(domains, " "), v.coredns...).Addr(), nodeCache: resolver.settings.addr}
}

// compare asks both servers for all names, of every type or of few.
func (d *differential) compare(t *testing.T, p serverPair, list []subject, everyType bool) {
	t.Helper()
	results, err := p.compareAll(questions(list, everyType, uint64(d.variants)))
	assert.NoError(t, err)
	got := judge(t, results, differences())
	t.Logf("%d names: %s", len(list), &got)
	d.total.add(&got)
}

// apiService is the service that the API server makes for itself.
func apiService() runtime.Object {
	return newService("default", "kubernetes", at("10.96.0.1", "fd00:10:96::1"), ports("https:443"))
}

// questions are what is asked for the subjects, over the first transport and for one in three over one of the others too. A soak asks
// for every type. Else the first names of each shape are asked for it, and of the others one in six, chosen by the seed: each shape has
// hundreds of names, and each variant asks for others.
func questions(list []subject, everyType bool, seed uint64) []question {
	const first = 20
	ways := transports()
	few, types := allTypes()
	if !everyType {
		types = few
	}
	chosen, asked := rand.New(rand.NewPCG(seed, 1)), map[string]int{}
	var all []question
	for i, s := range list {
		for j, qtype := range types {
			kind := fmt.Sprint(s.shape, qtype)
			if skipped := chosen.IntN(6) > 0; skipped && asked[kind] >= first && !proctest.Soak() {
				continue
			}
			asked[kind]++
			all = append(all, question{s, qtype, ways[0]})
			if (i+j)%3 == 0 {
				all = append(all, question{s, qtype, ways[1+(i+j)/3%(len(ways)-1)]})
			}
		}
	}
	return all
}

// A tally counts comparisons and differences.
type tally struct {
	comparisons int
	differing   int
	reasons     map[string]int
}

func (t *tally) add(o *tally) {
	t.comparisons += o.comparisons
	t.differing += o.differing
	for name, n := range o.reasons {
		t.reasons[name] += n
	}
}

func (t *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d comparisons, %d with other differences than RA", t.comparisons, t.differing)
	for _, name := range slices.Sorted(maps.Keys(t.reasons)) {
		fmt.Fprintf(&b, "\n  %6d %s", t.reasons[name], name)
	}
	return b.String()
}

// judge counts the differences by their listed reasons, and fails the test for those that have none.
func judge(t *testing.T, results []comparison, list []difference) tally {
	t.Helper()
	const shown = 30
	got := tally{comparisons: len(results), reasons: map[string]int{}}
	unexplained := map[string][]*comparison{}
	for i := range results {
		c := &results[i]
		if c.diff == facetNone {
			continue
		}
		if c.diff != facetRA { // which nearly all have
			got.differing++
		}
		left := c.diff
		for _, d := range list {
			if f := d.explains(c) & left; f != 0 {
				left &^= f
				got.reasons[d.name]++
			}
		}
		if left != 0 {
			key := fmt.Sprintf("%s: %s (%s and %s)", c.shape, left, dns.RcodeToString[c.coredns.msg.Rcode], dns.RcodeToString[c.nodeCache.msg.Rcode])
			unexplained[key] = append(unexplained[key], c)
		}
	}
	for i, key := range slices.Sorted(maps.Keys(unexplained)) {
		all := unexplained[key]
		if i < shown {
			t.Errorf("%d times no reason is listed: %s, for %s\n%s", len(all), key, typesOf(all), all[0])
		} else {
			t.Errorf("%d times no reason is listed: %s, for %s", len(all), key, typesOf(all))
		}
	}
	return got
}

func typesOf(all []*comparison) string {
	types := map[string]bool{}
	for _, c := range all {
		types[dns.Type(c.qtype).String()] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(types)), " ")
}
