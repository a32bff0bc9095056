// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Names are case-insensitive (RFC 4343), and most servers copy the question. Some do not: they send it back in lower
// case, compare names byte by byte, or drop queries in mixed case. Random case is therefore evidence against a forger,
// but an answer to it is believed only if it has records. Anything else is asked again in lower case:
//
//	random case over UDP ─ records ─────────────────────────► the answer
//	    └─ a denial, an error, another case, silence
//	           └─ lower case over TCP ─ an answer ──────────► the answer
//	                  └─ TCP fails, or is known to fail
//	                         └─ lower case over UDP ────────► the answer
//
// Silence alone never leads to lower case over UDP: a flood can cause it. If the answers differ, the domain of the name is
// asked in lower case for a while, over TCP if that works.

// A doubt says why an answer to the random case is not believed.
type doubt uint8

const (
	noDoubt      doubt = iota
	doubtCase          // the question came back in another case
	doubtSilence       // no answer came
	doubtWeak          // SERVFAIL, which may have another cause, or a header without a question
	doubtStrong        // no records, or another error than SERVFAIL
)

// An answerKind is what the answers to the random case and to the lower case have in common if the server ignores the
// case: the response code and whether there are records.
type answerKind struct {
	rcode   uint16
	records bool
}

func kindOf(m *wire.Message) answerKind {
	return answerKind{rcode: m.Rcode(), records: binary.BigEndian.Uint16(m.Raw[6:]) > 0} // ANCOUNT
}

// doubtReply returns why the reply to a name in random case is not believed.
func doubtReply(in *reply) (doubt, answerKind) {
	switch {
	case in.err != nil:
		return noDoubt, answerKind{}
	case in.caseChanged:
		return doubtCase, answerKind{}
	case in.headerOnlyRcode != 0:
		return doubtWeak, answerKind{rcode: in.headerOnlyRcode}
	}
	kind := kindOf(in.m)
	switch {
	case kind.rcode == wire.RcodeServFail:
		return doubtWeak, kind
	case kind.rcode != wire.RcodeSuccess || !kind.records:
		return doubtStrong, kind
	}
	return noDoubt, kind
}

// The bound of queries that are asked again: a burst of maxCaseChecks, then one for each caseCheckEvery queries to the
// upstream. Beyond the bound, queries go in lower case from the start, over TCP if that works.
const (
	caseCheckEvery = 10
	maxCaseChecks  = 100
)

// maxCaseDomains bounds the domains that are known to be asked in lower case. With more, the oldest are learned again.
const maxCaseDomains = 64

// A caseMemory is what an upstream has shown about the case of names.
type caseMemory struct {
	changes limitation            // it sends names back in another case
	domains map[string]limitation // it compares the names of these domains byte by byte; canonical, in wire form
	debt    int                   // rises by caseCheckEvery for each query that is asked again, falls by one for each attempt
}

// choose decides between random case over UDP, and lower case over TCP or UDP.
func (c *caseMemory) choose(a *attempt, tcpFails bool) {
	c.debt = max(c.debt-1, 0)
	p := a.previous
	if p == nil {
		a.randomCase = c.debt < maxCaseChecks*caseCheckEvery && !c.changes.active(a.sentAt) && !c.isSensitive(a.query, a.sentAt)
		a.overTCP = !a.randomCase && !tcpFails
		return
	}
	a.doubt, a.doubted = p.doubt, p.doubted
	if p.randomCase {
		a.doubt = doubtSilence
	}
	a.overTCP = p.previous == nil && !tcpFails
	a.randomCase = !a.overTCP && a.doubt == doubtSilence
}

// askAgain records that an attempt is asked again in lower case because of a doubt.
func (c *caseMemory) askAgain(a *attempt, tcpFails bool) {
	c.debt += caseCheckEvery
	if a.doubt == doubtStrong {
		c.changes.evidence = 0
	}
	a.randomCase, a.overTCP = false, !tcpFails
}

// leaveTCP moves an attempt from TCP to UDP: in random case if the random case got no answer, else in lower case.
func (a *attempt) leaveTCP() { a.overTCP, a.randomCase = false, a.doubt == doubtSilence }

// learn learns from a good answer. It reports whether the upstream is now known to compare names byte by byte, and was not before.
func (c *caseMemory) learn(a *attempt, kind answerKind, now time.Time) (found bool) {
	switch {
	case a.randomCase:
		c.changes.evidence = 0
		c.forget(a.query)
	case a.doubt == doubtCase:
		c.changes.observe(now, minEvidence) // a single answer in another case may be forged, so it is not enough
	case a.doubt == doubtSilence, a.doubt != noDoubt && kind != a.doubted:
		// A denial or refusal in the random case and another answer over TCP are not forged: once is enough. A SERVFAIL may
		// have been temporary, and over UDP the second answer may be forged.
		enough := minEvidence
		if a.doubt == doubtStrong && a.overTCP {
			enough = 1
		}
		known := len(c.listed(now)) > 0
		return c.observe(a.query, now, enough) && !known
	}
	return false
}

// observe adds evidence for the domain of the query, and reports whether it is enough.
func (c *caseMemory) observe(query []byte, now time.Time, enough int) bool {
	domain := caseDomain(query)
	l, known := c.domains[string(domain)]
	if !known && len(c.domains) >= maxCaseDomains {
		c.removeOldest()
	}
	l.observe(now, enough)
	if c.domains == nil {
		c.domains = map[string]limitation{}
	}
	c.domains[string(domain)] = l
	return l.active(now)
}

// removeOldest makes room for one more domain. It removes one with too little evidence, else the one whose limitation ends first.
func (c *caseMemory) removeOldest() {
	oldest, until := "", time.Time{}
	for domain, l := range c.domains {
		if oldest == "" || l.until.Before(until) {
			oldest, until = domain, l.until
		}
	}
	delete(c.domains, oldest)
}

// forget drops the evidence for the domain of the query.
func (c *caseMemory) forget(query []byte) {
	if len(c.domains) > 0 {
		delete(c.domains, string(caseDomain(query)))
	}
}

// isSensitive reports whether the upstream is known to compare the names of the query's domain byte by byte.
func (c *caseMemory) isSensitive(query []byte, now time.Time) bool {
	if len(c.domains) == 0 {
		return false
	}
	l := c.domains[string(caseDomain(query))]
	return l.active(now)
}

// listed returns the domains that are known, in presentation form.
func (c *caseMemory) listed(now time.Time) (list []string) {
	for domain, l := range c.domains {
		if l.active(now) {
			list = append(list, string(wire.AppendText(nil, []byte(domain))))
		}
	}
	return list
}

// caseDomain returns the domain that shares what is learned from a query: the parent of its name. A top-level domain, and
// a name directly below one, stands for itself: such names belong to different people, and what one of them does must not
// affect the others. query has a canonical name, as all queries have before they are sent.
func caseDomain(query []byte) []byte {
	name := wire.QueryName(query)
	if len(name) == 0 || name[0] == 0 {
		return name
	}
	parent := name[1+name[0]:]
	if parent[0] == 0 || parent[1+parent[0]] == 0 {
		return name
	}
	return parent
}
