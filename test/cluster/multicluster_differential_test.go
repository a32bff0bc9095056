// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

// setDomain is the domain of the cluster set.
const setDomain = "clusterset.local."

// TestMultiClusterDifferential compares the answers with those of CoreDNS's option multicluster, which reads v1alpha1.
func TestMultiClusterDifferential(t *testing.T) {
	t.Parallel()
	m := multiCluster{kubetest.Start(t, kubetest.Options{})}
	m.serve(t, "v1beta1", "v1alpha1")
	m.openSet(t, "v1beta1")
	m.putImport(t, "v1beta1", "plain", "ClusterSetIP", []string{"10.97.0.2"}, importPort("", 80))
	m.putImport(t, "v1beta1", "portless", "ClusterSetIP", []string{"10.97.0.3"})
	m.putImport(t, "v1beta1", "pending", "ClusterSetIP", nil, importPort("http", 80))
	m.putImport(t, "v1beta1", "idle", "Headless", nil, importPort("sql", 5432))
	m.putImport(t, "v1beta1", "unready", "Headless", nil, importPort("sql", 5432))
	kubetest.Apply(t, m.Cluster, kubetest.Namespace("empty"),
		importedSlice("web", "east", endpoint("10.1.1.1", named("web-0")), endpoint("10.1.1.2")),
		importedSlice("unready", "east", endpoint("10.1.2.1", named("one"), unready)),
		importedSlice("never", "east", endpoint("10.1.3.1", named("one"))))
	upstream := startUpstream(t)
	n := startReady(t, settings{
		command: "resolver", root: upstream, cluster: []string{clusterSetLine, ranges, kubeconfig(m.Kubeconfig(kubetest.Admin))},
	})
	theirs := kubetest.StartCoreDNS(t, m.Cluster, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	kubernetes cluster.local %s in-addr.arpa ip6.arpa {
		kubeconfig {$KUBECONFIG}
		multicluster %[1]s
	}
	forward . %s
}
`, setDomain, upstream))
	pair := serverPair{coredns: theirs.Addr(), nodeCache: n.settings.addr}
	var questions []question
	_, types := allTypes()
	for _, s := range setSubjects() {
		for _, qtype := range types {
			if qtype != dns.TypeAXFR && qtype != dns.TypeIXFR {
				questions = append(questions, question{s, qtype, transports()[0]}, question{s, qtype, transports()[2]})
			}
		}
	}
	results, err := pair.compareAll(questions)
	assert.NoError(t, err)
	used := map[string]int{}
	for i := range results {
		c, left := &results[i], results[i].diff
		for _, d := range slices.Concat(setDifferences(), differences()) {
			if f := d.explains(c) & left; f != 0 {
				left &^= f
				used[d.name]++
			}
		}
		if left != 0 {
			t.Errorf("no reason is listed: %s\n%s", left, c)
		}
	}
	t.Logf("%d comparisons, by reasons: %v", len(results), used)
	for _, d := range setDifferences() {
		if used[d.name] == 0 {
			t.Errorf("the difference %q is listed and does not occur", d.name)
		}
	}
}

// setSubjects are names of the set, and the reverse names of its addresses.
func setSubjects() (list []subject) {
	add := func(s shape, names ...string) {
		for _, name := range names {
			if !strings.HasSuffix(name, ".arpa.") {
				name = strings.TrimPrefix(name+"."+setDomain, ".")
			}
			list = append(list, subject{name: name, shape: s})
		}
	}
	add(shapeTree, "", "svc", "pod")
	add(shapeOwn, "dns", "ns.dns", "dns-version")
	add(shapeOutside, "x", "x.dns", "web.shop")
	add(shapeSpace, "shop.svc", "empty.svc", "nowhere.svc", "shop.pod")
	add(shapePod, "10-1-1-1.shop.pod")
	for _, service := range []string{"web", "plain", "portless", "pending", "db", "idle", "unready", "never", "nothing", "WEB", "DB"} {
		base := service + ".shop.svc"
		add(shapeService, base)
		add(shapePort, "_http._tcp."+base, "_sql._tcp."+base, "_sql._udp."+base, "_none._tcp."+base, "_http.tcp."+base, "http._tcp."+base, "_._tcp."+base)
		add(shapeNode, "_tcp."+base, "_udp."+base)
		add(shapeBarePort, "http.tcp."+base, "sql.tcp."+base)
		add(shapeEndpoint, "db-0.east."+base, "db-0.west."+base, "DB-1.East."+base, "db-1.west."+base, "one.east."+base, "web-0.east."+base,
			"10-1-1-2.east."+base, "10-1-0-3.east."+base, "db-0."+base, "east."+base, "north."+base, "x.north."+base)
		add(shapeDeep, "x.db-0.east."+base, "_sql._tcp.db-0."+base, "z.pin._zone."+base)
		add(shapeZoneNode, "_zone."+base, "pin._zone."+base)
	}
	add(shapeReverse, "1.0.97.10.in-addr.arpa.", "1.0.1.10.in-addr.arpa.", "1.0.2.10.in-addr.arpa.", "1.1.1.10.in-addr.arpa.", "1.2.1.10.in-addr.arpa.")
	return list
}

// setDifferences are those of a cluster set alone.
func setDifferences() []difference {
	inSet := func(c *comparison) bool { return strings.HasSuffix(strings.ToLower(c.name), "."+setDomain) }
	isService := func(c *comparison, names ...string) bool {
		labels := dns.SplitDomainName(strings.ToLower(c.name))
		return len(labels) > 4 && slices.Contains(names, labels[len(labels)-5])
	}
	return []difference{
		{
			name: "version of the specification",
			why:  "Multicluster DNS specification section 2.2: it is 1.0.0. CoreDNS says 1.1.0, the version of the cluster's specification.",
			explains: func(c *comparison) facets {
				return when(c.name == "dns-version."+setDomain && c.qtype == dns.TypeTXT && strings.HasSuffix(c.nodeCache.answer[0], `"1.0.0"`), facetAnswer)
			},
		},
		{
			name: "endpoints of a ClusterSetIP",
			why:  "Section 2.3.4: such a service has no record for a single cluster. CoreDNS answers for its endpoints.",
			explains: func(c *comparison) facets {
				return when(c.shape == shapeEndpoint && isService(c, "web", "plain") && c.nodeCacheDenies(dns.RcodeNameError), facetRcode|facetsSections)
			},
		},
		{
			name: "reverse names of a set",
			why:  "Sections 2.3.3 and 2.4.3: an address without a PTR record of the cluster has one of the set. CoreDNS gives none.",
			explains: func(c *comparison) facets {
				known := c.shape == shapeReverse && c.coredns.msg.Rcode == dns.RcodeNameError && c.nodeCache.msg.Rcode == dns.RcodeSuccess
				return when(known, facetRcode|facetsSections)
			},
		},
		{
			name: "name server of the reverse tree, of a set",
			why:  "RFC 1035 section 3.3.13: MNAME is a name server's name, here that of the zone with the address.",
			explains: func(c *comparison) facets {
				ours := c.shape == shapeReverse && len(c.nodeCache.authority) == 1
				return when(ours && strings.Contains(c.nodeCache.authority[0], " SOA ns.dns."+setDomain) ||
					ours && strings.Contains(c.nodeCache.authority[0], "\tSOA\tns.dns."+setDomain), facetAuthority)
			},
		},
		{
			name: "an import without ports",
			why:  "Section 2.3.1: its address has a record. CoreDNS denies the name.",
			explains: func(c *comparison) facets {
				return when(isService(c, "portless") && c.shape == shapeService && c.rcodes(dns.RcodeNameError, dns.RcodeSuccess), facetRcode|facetsSections)
			},
		},
		{
			name: "type TXT of an import without an address",
			why:  "RFC 2308 section 2.2: the name exists for every type. CoreDNS denies it for this one.",
			explains: func(c *comparison) facets {
				return when(isService(c, "pending") && c.qtype == dns.TypeTXT && c.emptyNode(), facetRcode)
			},
		},
		{
			name: "clusters as nodes above their endpoints",
			why:  "RFC 8020: east.db exists because db-0.east.db does. CoreDNS denies it.",
			explains: func(c *comparison) facets {
				return when(inSet(c) && c.label(0) == "east" && c.emptyNode(), facetRcode)
			},
		},
	}
}
