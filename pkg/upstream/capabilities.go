// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// capabilityTTL is how long a learned limitation is assumed before it is tested again.
const capabilityTTL = 10 * time.Minute

// maxTCPRetries is how many truncated answers at a time are retried over TCP while the upstream's TCP connections
// fail. The first success shows that TCP works again; the other queries fail at once. [openLimiter] bounds how often
// a connection is opened for them.
const maxTCPRetries = 16

// minEvidence is how often in a row a sign must be seen if it may be chance.
const minEvidence = 3

// EDNS sizes for upstreams with which the usual one fails. The large one fits an Ethernet frame (RFC 9715 section
// 3.1): a second fragment would carry no port, ID or question that an attacker has to guess.
const (
	smallUDPSize        = 512
	unfragmentedUDPSize = 1400
)

// maxRefusedTypes bounds the types that an upstream is known to refuse.
const maxRefusedTypes = 16

// capabilities are what an upstream has shown that it can and cannot do.
type capabilities struct {
	noEDNS       limitation // it answers FORMERR or NOTIMP to an OPT record, and well without
	noRandomCase limitation // it changes the case of names
	noTCP        limitation // it truncates answers but accepts no TCP connections: ask for larger UDP answers
	smallUDP     limitation // it answers only queries with the smallest EDNS size
	refusedTypes []refusedType
	tcpRetries   int // attempts that wait for TCP after UDP
}

// A limitation is assumed until a point in time, once there is enough evidence.
type limitation struct {
	evidence int
	until    time.Time
}

func (l *limitation) observe(now time.Time, enough int) {
	if l.evidence++; l.evidence >= enough {
		l.until = now.Add(capabilityTTL)
		l.evidence = 0
	}
}

func (l *limitation) active(now time.Time) bool { return now.Before(l.until) }

// A refusedType is a record type that the upstream answers with REFUSED or NOTIMP.
type refusedType struct {
	rrtype uint16
	limitation
}

// apply adapts an attempt to the upstream.
func (c *capabilities) apply(a *attempt, udp, mixCase bool) {
	a.randomCase = udp && mixCase && !c.noRandomCase.active(a.sentAt)
	a.smallUDP = udp && (a.smallUDP || c.smallUDP.active(a.sentAt))
	switch {
	case a.noOPT:
		a.smallUDP = false
	case c.noEDNS.active(a.sentAt):
		if q := a.exchange.withoutOPT(); q != nil {
			a.query, a.noOPT, a.smallUDP = q, true, false
		}
	case a.smallUDP:
		a.query = wire.WithUDPSize(a.query, smallUDPSize)
	case udp && c.noTCP.active(a.sentAt):
		a.query = wire.WithUDPSize(a.query, unfragmentedUDPSize)
	}
}

// allowTCPRetry reports whether a truncated answer may be retried over TCP, and if so counts the retry.
func (c *capabilities) allowTCPRetry(now time.Time) bool {
	if c.noTCP.active(now) && c.tcpRetries >= maxTCPRetries {
		return false
	}
	c.tcpRetries++
	return true
}

// tcpRetryFailed records that an answer was truncated, or came in another case, and TCP failed as well.
func (c *capabilities) tcpRetryFailed(a *attempt, now time.Time) {
	if a.caseChanged {
		c.noRandomCase.observe(now, minEvidence)
		return
	}
	c.noTCP.observe(now, 2) // so the third attempt succeeds
}

// learnFromAnswer learns from a good answer.
func (c *capabilities) learnFromAnswer(a *attempt, now time.Time) {
	switch {
	case !a.noOPT:
		c.noEDNS.evidence = 0
	case c.noEDNS.active(now), a.exchange.failure.Reason != Rcode:
	case a.exchange.headerOnly:
		// A bare header has only port and ID to guess. One forged header causes one retry without OPT. It takes three
		// in a row, without an answer to an OPT record in between, to leave OPT out for longer.
		c.noEDNS.observe(now, minEvidence)
	default:
		c.noEDNS.observe(now, 1)
	}
	switch {
	case a.caseChanged: // once may be a forgery, which must not change the state
		c.noRandomCase.observe(now, minEvidence)
	case a.randomCase:
		c.noRandomCase.evidence = 0
	}
	if a.udpRTT > 0 {
		c.noTCP = limitation{}
	}
	switch {
	case !a.smallUDP:
		c.smallUDP.evidence = 0
	case !c.smallUDP.active(now):
		c.smallUDP.observe(now, minEvidence)
	}
	if len(c.refusedTypes) > 0 {
		rrtype := wire.QueryType(a.query)
		c.refusedTypes = slices.DeleteFunc(c.refusedTypes, func(r refusedType) bool { return r.rrtype == rrtype })
	}
}

// learnFromRefusal learns from a refusal.
func (c *capabilities) learnFromRefusal(now time.Time, rrtype uint16, cause Cause) {
	if cause != CauseRefused && cause != CauseNotImp || rrtype == wire.TypeA || rrtype == wire.TypeAAAA {
		return // an upstream that refuses addresses refuses everything
	}
	i := slices.IndexFunc(c.refusedTypes, func(r refusedType) bool { return r.rrtype == rrtype })
	if i < 0 {
		if len(c.refusedTypes) == maxRefusedTypes {
			c.refusedTypes = c.refusedTypes[1:]
		}
		c.refusedTypes = append(c.refusedTypes, refusedType{rrtype: rrtype})
		i = len(c.refusedTypes) - 1
	}
	c.refusedTypes[i].observe(now, minEvidence)
}

// isTypeRefused reports whether the upstream is known to refuse the type.
func (c *capabilities) isTypeRefused(now time.Time, rrtype uint16) bool {
	return slices.ContainsFunc(c.refusedTypes, func(r refusedType) bool { return r.rrtype == rrtype && r.active(now) })
}

// limitations lists the assumed limitations by name, for the status page.
func (c *capabilities) limitations(now time.Time) []string {
	var list []string
	for _, h := range []struct {
		name string
		*limitation
	}{{"no-edns", &c.noEDNS}, {"no-case", &c.noRandomCase}, {"no-tcp", &c.noTCP}, {"small-udp", &c.smallUDP}} {
		if h.active(now) {
			list = append(list, h.name)
		}
	}
	for _, r := range c.refusedTypes {
		if r.active(now) {
			list = append(list, fmt.Sprintf("refuses-type-%d", r.rrtype))
		}
	}
	return list
}
