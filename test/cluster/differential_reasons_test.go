// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// A difference is one that is meant. explains gives the respects in which it makes the two answers of a comparison
// differ; it looks at what both say, so that another difference at the same name is not taken for this one.
type difference struct {
	name     string
	why      string
	explains func(*comparison) facets
}

func differences() []difference {
	return slices.Concat(generalDifferences(), aliasDifferences(), nodeDifferences(), nameDifferences(), podDifferences(), reverseDifferences(), sizeDifferences())
}

// generalDifferences are those of every name.
func generalDifferences() []difference {
	return []difference{
		{
			name: "recursion is offered",
			why:  "RFC 1035 section 4.1.1: RA says what the server can do, not how this answer came about. CoreDNS leaves it to the plugin.",
			explains: func(c *comparison) facets {
				return when(c.nodeCache.msg.RecursionAvailable, facetRA)
			},
		},
		{
			name: "type ANY",
			why:  "RFC 8482 section 4.2: one HINFO record, whatever the name. CoreDNS denies the type.",
			explains: func(c *comparison) facets {
				minimal := len(c.nodeCache.answer) == 1 && strings.HasSuffix(c.nodeCache.answer[0], "\tHINFO\t\"RFC8482\" \"\"")
				return when(c.qtype == dns.TypeANY && minimal, facetRcode|facetAA|facetTC|facetsSections)
			},
		},
		{
			name: "transfers of zones elsewhere",
			why:  "RFC 6895 section 3.1: that is a question for a server of the zone, not a type of data to be fetched. CoreDNS forwards it.",
			explains: func(c *comparison) facets {
				transfer := c.shape == shapeElse && (c.qtype == dns.TypeAXFR || c.qtype == dns.TypeIXFR)
				return when(transfer && c.nodeCache.msg.Rcode == dns.RcodeRefused, facetRcode|facetsSections)
			},
		},
		{
			name: "type SOA of a name that does not exist",
			why:  "RFC 2308 section 2.1: NXDOMAIN is for the name, whatever the type. CoreDNS does not look the name up for this type.",
			explains: func(c *comparison) facets {
				denied := c.rcodes(dns.RcodeSuccess, dns.RcodeNameError) && len(c.coredns.answer)+len(c.nodeCache.answer) == 0
				return when(c.qtype == dns.TypeSOA && denied, facetRcode)
			},
		},
		{
			name: "spelling of names in data",
			why:  "RFC 4343 section 4.1: only the question's own spelling must come back. CoreDNS puts pieces of it into the data too.",
			explains: func(c *comparison) facets {
				return when(strings.ToLower(c.name) != c.name, facetCase)
			},
		},
		{
			name: "TTL of names elsewhere",
			why:  "RFC 1035 section 3.2.1: what comes from the cache is older, and a denial is kept for 30 s at most. CoreDNS runs without a cache.",
			explains: func(c *comparison) facets {
				return when(sameInZone(c), facetTTL)
			},
		},
		{
			name: "the SOA record of a zone that the name is not in",
			why:  "RFC 2308 section 5: a denial is kept for as long as the zone of the name says, and no other may. The server outside gives the same record for every name.",
			explains: func(c *comparison) facets {
				strange := !dns.IsSubDomain("example.test.", dns.CanonicalName(c.name)) && len(c.nodeCache.authority) == 0 &&
					len(c.coredns.authority) == 1 && strings.HasPrefix(c.coredns.authority[0], "example.test.")
				return when(strange && c.rcodes(dns.RcodeNameError, dns.RcodeNameError), facetAuthority)
			},
		},
		{
			name: "names of the host itself",
			why:  "RFC 6761 section 6.3: localhost and its addresses are answered here, not by the server outside.",
			explains: func(c *comparison) facets {
				here := len(c.nodeCache.answer) == 1 && strings.HasSuffix(c.nodeCache.answer[0], "\tPTR\tlocalhost.")
				return when(c.shape == shapeUnknown && here, facetRcode|facetAA|facetsSections)
			},
		},
		{
			name: "TTL by annotation",
			why:  "node-cache.io/ttl on a Service gives the TTL of its names. CoreDNS has one TTL for all.",
			explains: func(c *comparison) facets {
				name := strings.ToLower(c.name)
				return when(strings.Contains(name, "patient.shop.svc.") || strings.Contains(name, "lasting.shop.svc."), facetTTL)
			},
		},
	}
}

// aliasDifferences are those of ExternalName services.
func aliasDifferences() []difference {
	return []difference{
		{
			name: "alias, then what its target says",
			why: "RFC 1034 section 3.6.2, RFC 2308 section 2.2, RFC 6604 section 3: an alias is one for every type; the answer has it, and behind it " +
				"what the target has or the denial of the target. CoreDNS follows it for A and AAAA only, says NOERROR, and keeps silent about " +
				"an alias whose target in the zone has nothing and about an upstream that fails.",
			explains: func(c *comparison) facets {
				return when(c.followed != nil && isFollowed(c), facetRcode|facetAA|facetsSections)
			},
		},
		{
			name: "more than 8 aliases in a row",
			why:  "No part of a chain that is not followed to its end is given. CoreDNS goes on to 11.",
			explains: func(c *comparison) facets {
				return when(c.target != "" && c.nodeCacheDenies(dns.RcodeSuccess) && c.coredns.msg.Rcode == dns.RcodeSuccess && len(c.coredns.answer) > 8, facetsSections)
			},
		},
		{
			name: "alias of an address's name",
			why:  "An alias is followed within the cluster domain; every other target is asked of the routes, which do not know the cluster's addresses.",
			explains: func(c *comparison) facets {
				return when(strings.HasSuffix(c.target, ".arpa.") && c.rcodes(dns.RcodeSuccess, dns.RcodeNameError), facetRcode|facetsSections)
			},
		},
		{
			name: "endpoints that are host names",
			why: "The API: no semantics are defined for the address type FQDN, and it is deprecated. CoreDNS makes an alias of it, beside " +
				"other records of the name (RFC 1034 section 3.6.2).",
			explains: func(c *comparison) facets {
				hosts := strings.HasSuffix(strings.ToLower(c.name), "hosts.shop.svc."+domain)
				return when(hosts && c.coredns.msg.Rcode == dns.RcodeSuccess && len(c.nodeCache.answer) == 0, facetRcode|facetsSections)
			},
		},
	}
}

// nodeDifferences are those of names that have nothing, and exist.
func nodeDifferences() []difference {
	return []difference{
		{
			name: "nodes above the names of ports",
			why:  "RFC 8020, RFC 4592 section 2.2.2: _tcp.web exists because _http._tcp.web does. CoreDNS takes it for an endpoint.",
			explains: func(c *comparison) facets {
				protocol := slices.Contains([]string{"tcp", "udp", "sctp"}, strings.TrimPrefix(c.label(0), "_"))
				return when(protocol && c.labels() == 6 && c.emptyNode(), facetRcode)
			},
		},
		{
			name: "nodes above zonal names",
			why:  "RFC 8020: _zone.db and pin._zone.db exist because of the names below them. CoreDNS takes them for endpoints or ports.",
			explains: func(c *comparison) facets {
				return when(c.shape == shapeZoneNode && c.emptyNode(), facetRcode)
			},
		},
		{
			name: "type TXT at a node without records",
			why:  "RFC 2308 section 2.2: the zone, svc, pod and the namespaces exist for every type. CoreDNS denies the names for this one.",
			explains: func(c *comparison) facets {
				return when(c.qtype == dns.TypeTXT && (c.shape == shapeTree || c.shape == shapeSpace) && c.emptyNode(), facetRcode)
			},
		},
		{
			name: "dns, ns.dns and dns-version for other types",
			why:  "RFC 2308 section 2.2, RFC 8020: a name that has a record of some type, or a name below it, exists for every type.",
			explains: func(c *comparison) facets {
				return when(c.shape == shapeOwn && c.emptyNode(), facetRcode)
			},
		},
	}
}

// nameDifferences are those of names that only one of the two knows.
func nameDifferences() []difference {
	return []difference{
		{
			name: "the zone's own name server",
			why:  "RFC 1034 section 4.2.1: a zone has one. CoreDNS leaves out an address that it is bound to by the plugin bind.",
			explains: func(c *comparison) facets {
				own := c.shape == shapeOwn && c.qtype == dns.TypeA || c.shape == shapeTree && c.qtype == dns.TypeNS
				return when(own && len(c.coredns.answer) == 0 && len(c.nodeCache.answer) == 1, facetRcode|facetsSections)
			},
		},
		{
			name: "a bare underscore for a port or a protocol",
			why:  "Kubernetes DNS specification 1.1.0 section 2.3.2: a port without a name has no SRV name. CoreDNS takes _ for any port.",
			explains: func(c *comparison) facets {
				bare := c.label(0) == "_" || c.label(1) == "_"
				return when(bare && c.rcodes(dns.RcodeSuccess, dns.RcodeNameError), facetRcode|facetTC|facetsSections)
			},
		},
	}
}

// podDifferences are those of pods, by their addresses and as endpoints.
func podDifferences() []difference {
	return []difference{
		{
			name: "names below a pod",
			why:  "Kubernetes DNS specification 1.1.0 knows none. CoreDNS does not look at what is left of the address.",
			explains: func(c *comparison) facets {
				below := c.labels() > 5 && strings.HasSuffix(strings.ToLower(c.name), ".pod."+domain)
				return when(below && c.rcodes(dns.RcodeSuccess, dns.RcodeNameError), facetRcode|facetsSections)
			},
		},
		{
			name: "type SRV of a pod",
			why:  "RFC 2782: an SRV record names a port. CoreDNS gives one with port 0.",
			explains: func(c *comparison) facets {
				port0 := len(c.coredns.answer) == 1 && strings.Contains(c.coredns.answer[0], "\tSRV\t0 100 0 ")
				return when(c.qtype == dns.TypeSRV && port0 && c.nodeCacheDenies(dns.RcodeSuccess), facetsSections)
			},
		},
		{
			name: "a pod's address with dots or colons in its label",
			why:  "Kubernetes DNS specification 1.1.0 section 2.6: dashes take their place. CoreDNS reads the label as it is.",
			explains: func(c *comparison) facets {
				return when(c.shape == shapePod && strings.Contains(c.name, "\\") && c.rcodes(dns.RcodeSuccess, dns.RcodeNameError), facetRcode|facetsSections)
			},
		},
		{
			name: "verified pods by all of their addresses",
			why:  "A pod of two families has two addresses (KEP-563), each of many spellings. CoreDNS knows the first one in one spelling.",
			explains: func(c *comparison) facets {
				six := c.shape == shapePod && (strings.Count(c.label(0), "-") > 3 || strings.Contains(c.label(0), "--"))
				return when(six && c.rcodes(dns.RcodeNameError, dns.RcodeSuccess), facetRcode|facetsSections)
			},
		},
		{
			name: "verified pods on their way out",
			why:  "A pod keeps its address until it is gone. CoreDNS forgets it when its deletion is asked for.",
			explains: func(c *comparison) facets {
				return when(c.shape == shapePod && c.label(0) == leavingPod && c.rcodes(dns.RcodeNameError, dns.RcodeSuccess), facetRcode|facetsSections)
			},
		},
		{
			name: "endpoints that are published though not ready",
			why: "The API: publishNotReadyAddresses is the service's word, which the controller writes into its slices and others may not. " +
				"CoreDNS goes by the slice.",
			explains: func(c *comparison) facets {
				if c.label(0) == unreadyEndpoint || strings.ToLower(c.name) == unreadyAddress {
					return when(c.rcodes(dns.RcodeNameError, dns.RcodeSuccess), facetRcode|facetAA|facetsSections)
				}
				published := slices.Contains(dns.SplitDomainName(strings.ToLower(c.name)), "published") && c.nodeCache.msg.Rcode == dns.RcodeSuccess
				return when(published && slices.Equal(withoutWeight(c.coredns.answer), withoutWeight(withoutUnready(c.nodeCache.answer))) &&
					slices.Equal(folded(c.coredns.additional), withoutUnready(c.nodeCache.additional)), facetAnswer|facetAdditional)
			},
		},
		{
			name: "endpoints named by a pod whose name is no label",
			why:  "RFC 1123 section 2.1: its address names it. CoreDNS gives targets of two labels, which it then denies.",
			explains: func(c *comparison) facets {
				named := c.rcodes(dns.RcodeNameError, dns.RcodeSuccess) && c.shape == shapeEndpoint
				return when(named && slices.Contains(slices.Collect(maps.Values(dottedPods())), c.label(0)), facetRcode|facetsSections) |
					when(slices.Equal(withoutDots(c.coredns.answer), folded(c.nodeCache.answer)) &&
						slices.Equal(withoutDots(c.coredns.additional), folded(c.nodeCache.additional)), facetAnswer|facetAdditional)
			},
		},
	}
}

// reverseDifferences are those of the names of addresses.
func reverseDifferences() []difference {
	isReverse := func(c *comparison) bool {
		return strings.HasSuffix(strings.ToLower(c.name), ".arpa.")
	}
	return []difference{
		{
			name: "other types of a reverse name",
			why:  "RFC 2308 section 2.2: a name with a PTR record exists for every type. CoreDNS denies it.",
			explains: func(c *comparison) facets {
				forwarded := when(!c.coredns.msg.Authoritative, facetAA|facetAuthority) // by the plugin fallthrough
				return when(c.qtype != dns.TypePTR && isReverse(c) && c.emptyNode(), facetRcode|forwarded)
			},
		},
		{
			name: "name server of the reverse tree",
			why:  "RFC 1035 section 3.3.13: MNAME is a name server's name. CoreDNS invents ns.dns.in-addr.arpa.",
			explains: func(c *comparison) facets {
				same := len(c.nodeCache.authority) == 1 && len(c.coredns.authority) == 1 && isReverse(c)
				if !same {
					return facetNone
				}
				ours := strings.ReplaceAll(strings.ToLower(c.nodeCache.authority[0]), ".corp.k8s.", "."+domain) // of that variant
				tree, _, _ := strings.Cut(ours, "\t")
				theirs := strings.ReplaceAll(strings.ToLower(c.coredns.authority[0]), "ns.dns."+tree, "ns.dns."+domain)
				return when(ours == strings.ReplaceAll(theirs, "hostmaster."+tree, "hostmaster."+domain), facetAuthority)
			},
		},
		{
			name: "reverse names of no address",
			why: "RFC 8020: names of addresses may be below them, so they exist without records. CoreDNS denies them, or serves names of the " +
				"cluster domain below in-addr.arpa. The roots of both trees go to the routes.",
			explains: func(c *comparison) facets {
				forwarded := !c.nodeCache.msg.Authoritative && c.nodeCache.msg.Rcode == dns.RcodeNameError
				empty := c.nodeCache.msg.Rcode == dns.RcodeSuccess && len(c.nodeCache.answer) == 0
				return when(isReverse(c) && c.shape != shapeReverse && c.shape != shapeUnknown && (forwarded || empty), facetRcode|facetAA|facetsSections)
			},
		},
		{
			name: "PTR records that lead nowhere",
			why: "RFC 1912 section 2.1: an address and a name match. CoreDNS gives names that it denies itself: of slices whose service " +
				"is gone or an alias, of namespaces that namespace_labels hides, of pods whose name is no label.",
			explains: func(c *comparison) facets {
				if !c.dangling {
					return facetNone
				}
				forwarded := when(!c.nodeCache.msg.Authoritative, facetAA)
				return facetAnswer | when(c.rcodes(dns.RcodeSuccess, dns.RcodeNameError), facetRcode|facetAuthority|forwarded)
			},
		},
		{
			name: "the address of a slice that belongs to no service",
			why:  "CoreDNS does not answer: it cannot pack a name with an empty label.",
			explains: func(c *comparison) facets {
				return when(c.qtype == dns.TypePTR && isReverse(c), facetSilence)
			},
		},
	}
}

// sizeDifferences are those of sets with many records, or with the same one several times.
func sizeDifferences() []difference {
	return []difference{
		{
			name: "what is left of an answer that is too large",
			why: "RFC 2181 section 9: sets but those of addresses are left out whole, and TC is set only if one that was asked for is " +
				"cut. CoreDNS cuts between any two records, compresses otherwise, and sets TC for additional ones as well.",
			explains: func(c *comparison) facets {
				return when(c.whole != nil && isTruncatedCorrectly(c), facetTC|facetAnswer|facetAdditional|facetOrder)
			},
		},
		{
			name: "weights of endpoints that are in a slice twice",
			why:  "RFC 2782: weights share the load between targets. CoreDNS counts the same target twice.",
			explains: func(c *comparison) facets {
				double := strings.HasSuffix(strings.ToLower(c.name), "hand.shop.svc."+domain)
				return when(double && c.qtype == dns.TypeSRV && slices.Equal(withoutWeight(c.coredns.answer), withoutWeight(c.nodeCache.answer)), facetAnswer)
			},
		},
	}
}

func when(condition bool, f facets) facets {
	if condition {
		return f
	}
	return facetNone
}

// rcodes reports whether those are the rcodes of CoreDNS and of node-cache.
func (c *comparison) rcodes(them, us int) bool {
	return c.coredns.msg.Rcode == them && c.nodeCache.msg.Rcode == us
}

// nodeCacheDenies reports whether node-cache says no with the rcode and a SOA record.
func (c *comparison) nodeCacheDenies(rcode int) bool {
	return c.nodeCache.msg.Rcode == rcode && len(c.nodeCache.answer) == 0 && len(c.nodeCache.authority) == 1
}

// emptyNode reports whether CoreDNS says that the name does not exist, and node-cache that it has nothing.
func (c *comparison) emptyNode() bool {
	return c.coredns.msg.Rcode == dns.RcodeNameError && c.nodeCacheDenies(dns.RcodeSuccess)
}

// label is the i-th label of the name in lower case.
func (c *comparison) label(i int) string {
	list := dns.SplitDomainName(strings.ToLower(c.name))
	if i >= len(list) {
		return ""
	}
	return list[i]
}

func (c *comparison) labels() int { return dns.CountLabel(c.name) }

// sameInZone reports whether the records are the same but for the TTL of names that neither server holds.
func sameInZone(c *comparison) bool {
	inZone := func(list []string) []string {
		return slices.DeleteFunc(folded(list), func(text string) bool {
			owner, _, _ := strings.Cut(text, "\t")
			return !isCluster(owner)
		})
	}
	return slices.Equal(inZone(c.coredns.answer), inZone(c.nodeCache.answer)) && slices.Equal(inZone(c.coredns.authority), inZone(c.nodeCache.authority)) &&
		slices.Equal(inZone(c.coredns.additional), inZone(c.nodeCache.additional))
}

// isFollowed reports whether our answer is the alias and all that our answer for its target is.
func isFollowed(c *comparison) bool {
	us, tail := c.nodeCache.msg, c.followed.msg
	if us.Rcode != tail.Rcode {
		return false
	}
	if us.Rcode == dns.RcodeServerFailure {
		return len(c.nodeCache.answer) == 0
	}
	if us.Truncated || tail.Truncated {
		return us.Truncated // which is looked into over TCP
	}
	first, rest := 0, make([]string, 0, len(c.nodeCache.answer))
	for _, text := range withoutTTL(folded(c.nodeCache.answer)) {
		if text == strings.ToLower(c.name+"\tIN\tCNAME\t"+c.target) {
			first++
			continue
		}
		rest = append(rest, text)
	}
	return first == 1 && slices.Equal(rest, withoutTTL(folded(c.followed.answer))) &&
		slices.Equal(withoutTTL(folded(c.nodeCache.authority)), withoutTTL(folded(c.followed.authority))) &&
		slices.Equal(withoutTTL(folded(c.nodeCache.additional)), withoutTTL(folded(c.followed.additional)))
}

// isTruncatedCorrectly reports whether our answer is a part of the whole one, within the limit, and not less than it must be.
func isTruncatedCorrectly(c *comparison) bool {
	if c.nodeCache.msg.Rcode != c.whole.msg.Rcode || c.nodeCache.size > c.via.limit() {
		return false
	}
	answer, whole := withoutTTL(folded(c.nodeCache.answer)), withoutTTL(folded(c.whole.answer))
	if c.nodeCache.msg.Truncated == slices.Equal(answer, whole) {
		return false // TC is for answers that are not whole
	}
	if addresses := c.qtype == dns.TypeA || c.qtype == dns.TypeAAAA; addresses && len(answer) == 0 {
		return false // some addresses are better than none
	}
	return isPart(answer, whole) && isPart(withoutTTL(folded(c.nodeCache.additional)), withoutTTL(folded(c.whole.additional)))
}

func isPart(part, whole []string) bool {
	for _, text := range part {
		if !slices.Contains(whole, text) {
			return false
		}
	}
	return true
}

// The endpoint that its slice calls not ready, and its service publishes: its name and its address.
const (
	unreadyEndpoint = "second"
	unreadyAddress  = "2.8.2.10.in-addr.arpa."
)

// withoutUnready leaves out the records of that endpoint.
func withoutUnready(list []string) []string {
	return slices.DeleteFunc(folded(list), func(text string) bool {
		return strings.Contains(text, " "+unreadyEndpoint+".published.") || strings.HasSuffix(text, "\t10.2.8.2")
	})
}

// dottedPods are the pods whose names are no labels, and the addresses of their endpoints as labels.
func dottedPods() map[string]string {
	return map[string]string{"web.dotted": "10-1-1-5", "odd.pod": "10-2-5-8"}
}

// withoutDots names the endpoints of such pods by their addresses, as targets and as owners.
func withoutDots(list []string) []string {
	var result []string
	for _, text := range folded(list) {
		for pod, address := range dottedPods() {
			text = strings.ReplaceAll(text, " "+pod+".", " "+address+".")
			if rest, found := strings.CutPrefix(text, pod+"."); found {
				text = address + "." + rest
			}
		}
		result = append(result, text)
	}
	slices.Sort(result)
	return result
}

// withoutWeight leaves the weights of SRV records away.
func withoutWeight(list []string) []string {
	var result []string
	for _, text := range folded(list) {
		if fields := strings.Fields(text); fields[3] == "srv" {
			text = strings.Join(slices.Delete(fields, 5, 6), " ")
		}
		result = append(result, text)
	}
	slices.Sort(result)
	return result
}
