// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// What is learned about an upstream's manners is believed for so long, and then learned anew.
const capabilityTTL = 10 * time.Minute

// maxTCPTrials is how many tries at a time are fetched over TCP from an upstream whose connections fail: without one
// there is nothing to be had of an answer that stays truncated, and the first to succeed shows that TCP works again. The
// others fail at once. How often a connection is opened for them is bounded by [pace].
const maxTCPRetries = 16

// mannersProofs is how often something that may be chance must be seen in a row.
const minEvidence = 3

// EDNS sizes for those with whom the usual one goes wrong. The large one passes unfragmented over Ethernet (RFC 9715
// section 3.1): the second fragment of an answer carries no port, ID or question that a forger has to guess.
const (
	smallUDPSize        = 512
	unfragmentedUDPSize = 1400
)

// maxRefusedTypes bounds the types that an upstream is known to refuse.
const maxRefusedTypes = 16

// manners are what an upstream can and cannot do, as far as it has shown.
type capabilities struct {
	noEDNS       limitation // FORMERR or NOTIMP for an OPT record, and a good answer without
	noRandomCase limitation // the letters of names come back changed
	noTCP        limitation // it truncates answers and does not take connections: let it truncate less
	smallUDP     limitation // it is silent but to queries with the smallest EDNS size
	refusedTypes []refusedType
	tcpRetries   int // tries that wait for TCP after UDP
}

// A habit is believed until some time once there are proofs enough.
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

// A refusal is a type that is answered REFUSED or NOTIMP.
type refusedType struct {
	rrtype uint16
	limitation
}

// apply makes a try fit for the upstream.
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

// mayFetch reports whether a truncated answer may be fetched over TCP. It counts the try then.
func (c *capabilities) allowTCPRetry(now time.Time) bool {
	if c.noTCP.active(now) && c.tcpRetries >= maxTCPRetries {
		return false
	}
	c.tcpRetries++
	return true
}

// fetchFailed learns from an answer that was cut, or came in other letters, and could not be had over TCP.
func (c *capabilities) tcpRetryFailed(a *attempt, now time.Time) {
	if a.caseChanged {
		c.noRandomCase.observe(now, minEvidence)
		return
	}
	c.noTCP.observe(now, 2) // the third try then fares better
}

// answered learns from a good answer.
func (c *capabilities) learnFromAnswer(a *attempt, now time.Time) {
	switch {
	case !a.noOPT:
		c.noEDNS.evidence = 0
	case c.noEDNS.active(now), a.exchange.failure.Reason != Rcode:
	case a.exchange.headerOnly:
		// A header alone has only port and ID to guess. One that is forged has a query sent again without OPT; three in
		// a row, with no answer to an OPT record between them, are needed to leave it out for longer.
		c.noEDNS.observe(now, minEvidence)
	default:
		c.noEDNS.observe(now, 1)
	}
	switch {
	case a.caseChanged: // one alone may be a forger's, who is to gain nothing by it
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

// refused learns from a refusal.
func (c *capabilities) learnFromRefusal(now time.Time, rrtype uint16, cause Cause) {
	if cause != CauseRefused && cause != CauseNotImp || rrtype == wire.TypeA || rrtype == wire.TypeAAAA {
		return // who refuses addresses refuses everything
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

// refusesType tells whether the type is known to be refused.
func (c *capabilities) isTypeRefused(now time.Time, rrtype uint16) bool {
	return slices.ContainsFunc(c.refusedTypes, func(r refusedType) bool { return r.rrtype == rrtype && r.active(now) })
}

// known lists what is believed, for people.
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
