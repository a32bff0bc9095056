// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// facets are the respects in which two answers differ, as a set.
type facets uint16

// The facets.
const (
	facetRcode facets = 1 << iota
	facetAA
	facetTC
	facetRA
	facetAnswer            // records, whatever their order, spelling and TTL
	facetAuthority         // the same
	facetAdditional        // the same
	facetOrder             // of the sets in the answer: an alias comes before its target
	facetTTL               // of records that are the same but for it
	facetCase              // of names that are the same but for it
	facetOPT               // whether there is an OPT record, and its flags
	facetEcho              // the question comes back
	facetSilence           // CoreDNS does not answer
	facetNone       facets = 0
	facetsSections         = facetAnswer | facetAuthority | facetAdditional
)

func (f facets) String() string {
	names := []string{"rcode", "AA", "TC", "RA", "answer", "authority", "additional", "order", "TTL", "case", "OPT", "question", "silence"}
	var list []string
	for ; f != 0; f &= f - 1 {
		list = append(list, names[bits.TrailingZeros16(uint16(f))])
	}
	return strings.Join(list, " ")
}

// A view is a message in a form that can be compared.
type view struct {
	msg        *dns.Msg
	size       int // bytes on the wire
	answer     []string
	authority  []string
	additional []string // without the OPT record
	order      []string // owner and type of each set of the answer
	opt        string
}

func viewOf(m *dns.Msg, size int) view {
	v := view{msg: m, size: size, answer: texts(m.Answer), authority: texts(m.Ns), additional: texts(m.Extra), opt: "none"}
	if opt := m.IsEdns0(); opt != nil {
		v.opt = fmt.Sprintf("version %d, DO %t", opt.Version(), opt.Do())
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		set := strings.ToLower(h.Name) + " " + dns.Type(h.Rrtype).String()
		if !slices.Contains(v.order, set) {
			v.order = append(v.order, set)
		}
	}
	return v
}

// texts spells records in an order that does not depend on the message's. The serial number of a zone is each server's
// own.
func texts(rrs []dns.RR) []string {
	var list []string
	for _, rr := range rrs {
		if rr.Header().Rrtype == dns.TypeOPT {
			continue
		}
		if soa, ok := rr.(*dns.SOA); ok && isCluster(soa.Ns) {
			soa.Serial = 0
		}
		list = append(list, rr.String())
	}
	slices.Sort(list)
	return list
}

// isCluster reports whether the name is one that the servers answer by themselves.
func isCluster(name string) bool {
	for _, zone := range []string{domain, "corp.k8s.", externalDomain, setDomain, "in-addr.arpa.", "ip6.arpa."} {
		if dns.IsSubDomain(zone, dns.CanonicalName(name)) {
			return true
		}
	}
	return false
}

// A comparison is one question and both answers.
type comparison struct {
	subject
	qtype              uint16
	via                transport
	coredns, nodeCache view
	diff               facets
	whole              *view // our answer over TCP, when one over UDP may not be whole
	followed           *view // our answer for the target of an alias
	dangling           bool  // CoreDNS denies the targets that only its PTR records have, and we know those that only ours have
}

// compare says in which respects the answers differ.
func (c *comparison) compare() {
	them, us := c.coredns.msg, c.nodeCache.msg
	c.diff = facetNone
	for f, same := range map[facets]bool{
		facetRcode: them.Rcode == us.Rcode,
		facetAA:    them.Authoritative == us.Authoritative,
		facetTC:    them.Truncated == us.Truncated,
		facetRA:    them.RecursionAvailable == us.RecursionAvailable,
		facetOPT:   c.coredns.opt == c.nodeCache.opt,
		facetOrder: slices.Equal(c.coredns.order, c.nodeCache.order),
		facetEcho:  slices.Equal(them.Question, us.Question),
	} {
		if !same {
			c.diff |= f
		}
	}
	c.diff |= sections(c.coredns.answer, c.nodeCache.answer, facetAnswer)
	c.diff |= sections(c.coredns.authority, c.nodeCache.authority, facetAuthority)
	c.diff |= sections(c.coredns.additional, c.nodeCache.additional, facetAdditional)
	if c.diff&facetAnswer != 0 {
		c.diff &^= facetOrder // which follows from the records
	}
}

// sections compares the records of a section and says how they differ.
func sections(them, us []string, f facets) facets {
	if slices.Equal(them, us) {
		return facetNone
	}
	a, b := folded(them), folded(us)
	if slices.Equal(a, b) {
		return facetCase
	}
	if slices.Equal(withoutTTL(a), withoutTTL(b)) {
		return facetTTL
	}
	return f
}

func folded(list []string) []string {
	var result []string
	for _, s := range list {
		result = append(result, strings.ToLower(s))
	}
	slices.Sort(result)
	return result
}

func withoutTTL(list []string) []string {
	var result []string
	for _, s := range list {
		fields := strings.SplitN(s, "\t", 3)
		result = append(result, fields[0]+"\t"+fields[2])
	}
	slices.Sort(result)
	return result
}

// String shows both answers.
func (c *comparison) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s (%s) over %s: %s\n", c.name, dns.Type(c.qtype), c.shape, c.via.name, c.diff)
	for _, side := range []struct {
		who string
		v   *view
	}{{"CoreDNS", &c.coredns}, {"node-cache", &c.nodeCache}} {
		m := side.v.msg
		fmt.Fprintf(&b, "  %s: %s aa=%t tc=%t ra=%t opt=%q, %d bytes\n", side.who, dns.RcodeToString[m.Rcode], m.Authoritative, m.Truncated,
			m.RecursionAvailable, side.v.opt, side.v.size)
		for _, section := range []struct {
			name string
			list []string
		}{{"answer", side.v.answer}, {"authority", side.v.authority}, {"additional", side.v.additional}} {
			for i, text := range section.list {
				if i == 6 {
					fmt.Fprintf(&b, "    … %d in all\n", len(section.list))
					break
				}
				fmt.Fprintf(&b, "    %-10s %s\n", section.name, strings.ReplaceAll(text, "\t", " "))
			}
		}
	}
	return b.String()
}
