// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// capabilityTTL is how long a learned limitation is assumed before it is tested again.
const capabilityTTL = 10 * time.Minute

// maxTCPRetries is how many truncated answers at a time are retried over TCP while the upstream's TCP connections
// fail. The first success shows that TCP works again. Beyond the limit, truncated queries fail at once. [openLimiter]
// bounds how often a connection is opened for the retries.
const maxTCPRetries = 16

// minEvidence is how often in a row a limitation must be observed if one observation may be chance or forged.
const minEvidence = 3

// EDNS sizes for upstreams with which the usual size fails. An answer of unfragmentedUDPSize fits an Ethernet frame (RFC
// 9715 section 3.1): a second fragment would carry no port, ID or question that an attacker has to guess.
const (
	smallUDPSize        = 512
	unfragmentedUDPSize = 1400
)

// maxRefusedTypes bounds the types that an upstream is known to refuse.
const maxRefusedTypes = 16

// What an endpoint learns about its server: what it cannot do, and how long it takes.

// capabilities are what an upstream has shown that it can and cannot do.
type capabilities struct {
	noEDNS       limitation            // it answers FORMERR or NOTIMP to a query with an OPT record, and well to one without
	caseMemory   caseMemory            // what it does with names in random case
	noTCP        limitation            // it answers over UDP, but TCP fails: ask for larger UDP answers
	smallUDP     limitation            // it answers only queries with the smallest EDNS size
	refusedTypes map[uint16]limitation // by record type: it answers REFUSED or NOTIMP
	tcpRetries   int                   // pending attempts that moved to TCP after a truncated answer
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

// apply adapts an attempt to the upstream. udp says that the upstream is asked over UDP.
func (c *capabilities) apply(a *attempt, udp, randomCase bool) {
	if udp && randomCase {
		c.caseMemory.choose(a, c.noTCP.active(a.sentAt))
	}
	a.smallUDP = udp && !a.overTCP && (a.smallUDP || c.smallUDP.active(a.sentAt))
	switch {
	case a.noOPT:
		a.smallUDP = false
	case c.noEDNS.active(a.sentAt):
		if q := withoutOPT(a.query); q != nil {
			a.query, a.noOPT, a.smallUDP = q, true, false
		}
	case a.smallUDP:
		a.query = wire.WithUDPSize(a.query, smallUDPSize)
	case udp && c.noTCP.active(a.sentAt):
		a.query = wire.WithUDPSize(a.query, unfragmentedUDPSize)
	}
}

// withoutOPT returns the query without its OPT record, or nil if it has none.
func withoutOPT(query []byte) []byte {
	var m wire.Message
	if m.Parse(bytes.Clone(query)) != nil || !m.HasOPT() || m.StripOPT() != nil {
		return nil
	}
	return m.Raw
}

// allowTCPRetry reports whether a truncated answer may be retried over TCP, and if so counts the retry.
func (c *capabilities) allowTCPRetry(now time.Time) bool {
	if c.noTCP.active(now) && c.tcpRetries >= maxTCPRetries {
		return false
	}
	c.tcpRetries++
	return true
}

// tcpFailed records that the upstream answers over UDP, but not over TCP.
func (c *capabilities) tcpFailed(now time.Time) {
	c.noTCP.observe(now, 2) // two failures are enough, so that the third attempt asks for a larger UDP answer
}

// learnFromAnswer learns from a good answer, except what random case shows. overTCP says that a UDP upstream gave it
// over TCP.
func (c *capabilities) learnFromAnswer(a *attempt, overTCP bool, now time.Time) {
	switch {
	case !a.noOPT:
		c.noEDNS.evidence = 0
	case c.noEDNS.active(a.sentAt): // known already: the upstream was not asked with OPT
	case a.headerOnly:
		// To forge a bare header, an attacker guesses only port and ID. One forged header causes one retry without OPT.
		// OPT is left out for longer after three in a row, without an answer to an OPT record in between.
		c.noEDNS.observe(now, minEvidence)
	default:
		c.noEDNS.observe(now, 1)
	}
	if overTCP {
		c.noTCP = limitation{}
	}
	switch {
	case !a.smallUDP:
		c.smallUDP.evidence = 0
	case !c.smallUDP.active(now):
		c.smallUDP.observe(now, minEvidence)
	}
	if len(c.refusedTypes) > 0 {
		delete(c.refusedTypes, wire.QueryType(a.query))
	}
}

// learnFromRefusal counts REFUSED or NOTIMP as evidence that the upstream refuses the record type. It ignores other causes.
func (c *capabilities) learnFromRefusal(now time.Time, rrtype uint16, cause Cause) {
	if cause != CauseRefused && cause != CauseNotImp || rrtype == wire.TypeA || rrtype == wire.TypeAAAA {
		return // an upstream that refuses addresses refuses everything
	}
	l, known := c.refusedTypes[rrtype]
	l.observe(now, minEvidence)
	switch {
	case c.refusedTypes == nil:
		c.refusedTypes = map[uint16]limitation{}
	case !known && len(c.refusedTypes) == maxRefusedTypes:
		clear(c.refusedTypes) // rare; they are learned again
	}
	c.refusedTypes[rrtype] = l
}

// isTypeRefused reports whether the upstream is known to refuse the record type.
func (c *capabilities) isTypeRefused(now time.Time, rrtype uint16) bool {
	l := c.refusedTypes[rrtype]
	return l.active(now)
}

// limitations lists the assumed limitations by name, for the status page.
func (c *capabilities) limitations(now time.Time) []string {
	var list []string
	for name, l := range map[string]limitation{"no-edns": c.noEDNS, "no-case": c.caseMemory.changes, "no-tcp": c.noTCP, "small-udp": c.smallUDP} {
		if l.active(now) {
			list = append(list, name)
		}
	}
	for _, domain := range c.caseMemory.listed(now) {
		list = append(list, "no-case:"+domain)
	}
	for rrtype := range c.refusedTypes {
		if c.isTypeRefused(now, rrtype) {
			list = append(list, fmt.Sprintf("refuses-type-%d", rrtype))
		}
	}
	slices.Sort(list)
	return list
}

// How latency becomes a score, a timeout and a hedge delay.
const (
	staleAfter    = 5 * time.Second        // without a query for so long, the smoothed latency starts anew
	minPenalty    = 100 * time.Millisecond // after a failure the smoothed latency is at least this
	maxPenalty    = time.Second            // a failure does not raise the smoothed latency above this; also the highest score
	initialSRTT   = 100 * time.Millisecond // assumed before the first answer; also the lowest score while lossy
	minTimeout    = 150 * time.Millisecond
	maxTimeout    = 800 * time.Millisecond
	timeoutSRTTs  = 4                    // the timeout is so many smoothed latencies, within minTimeout and maxTimeout
	minHedgeDelay = 5 * time.Millisecond // lower bound of the hedge delay, for fast upstreams
	minSamples    = 16                   // round trips observed before the p95 is used
)

// What a score is made of.
const (
	numRecent      = 8                       // samples kept
	sampleInterval = time.Second / numRecent // least time between samples, so that they cover a second or more
	forgetAfter    = time.Minute             // after so long without a sample, all earlier samples are dropped
	lostSample     = time.Hour               // stands for a lost attempt; longer than any round trip
)

// A latency holds what is known of an upstream's round trips.
//
// Names that are slow at any upstream count for the timeout and the hedge delay, but must not move the score. The score is
// a low quantile of the last numRecent samples, which cover a second or more.
type latency struct {
	srtt       time.Duration // smoothed round trip, including penalties; 0: unknown
	answers    time.Duration // smoothed round trip of answers alone, for people; 0: unknown
	p95        time.Duration // approximate p95 of recent round trips; 0: unknown
	samples    uint8         // round trips observed, counted up to minSamples
	typical    time.Duration // the sample above the lowest third of recent; 0: unknown
	recent     [numRecent]time.Duration
	recorded   uint      // samples ever put into recent
	lossy      bool      // at least half of recent were lost attempts, and more than a quarter still are
	nextSample time.Time // when the next sample may be taken
}

// observe adds a round trip (RFC 6298 section 2.3). stale says that the previous value is too old to be used.
func (l *latency) observe(rtt time.Duration, stale bool) {
	rtt = max(rtt, 1) // 0 means unknown
	l.srtt, l.answers = smooth(l.srtt, rtt, stale), smooth(l.answers, rtt, stale)
	if l.samples < minSamples {
		l.samples++
		l.p95 = max(l.p95, rtt)
		return
	}
	l.trackP95(rtt)
}

// smooth returns the smoothed round trip after one more.
func smooth(before, rtt time.Duration, stale bool) time.Duration {
	if before == 0 || stale {
		return rtt
	}
	return max(before+(rtt-before)/8, 1)
}

// trackP95 moves the p95 estimate: up by nineteen steps for a sample above it, down by one step for one below.
func (l *latency) trackP95(rtt time.Duration) {
	step := max(l.p95/256, 1)
	if rtt > l.p95 {
		l.p95 = min(l.p95+19*step, rtt)
		return
	}
	l.p95 -= step
}

// record takes a round trip, or lostSample, for the score. Of many in a sampleInterval it takes the first.
func (l *latency) record(rtt time.Duration, now time.Time) {
	if now.Before(l.nextSample) {
		return
	}
	if now.Sub(l.nextSample) >= forgetAfter {
		l.recorded, l.lossy = 0, false
	}
	l.nextSample = now.Add(sampleInterval)
	l.recent[l.recorded%numRecent] = max(rtt, 1) // 0 means unknown
	l.recorded++
	sorted := l.recent
	n := int(min(l.recorded, numRecent))
	slices.Sort(sorted[:n])
	l.typical = sorted[n/3]
	switch {
	case n >= numRecent/2 && sorted[n/2] == lostSample: // at least half are lost
		l.lossy = true
	case sorted[n-1-n/4] != lostSample: // at most a quarter is lost
		l.lossy = false
	}
}

// score returns the latency by which upstreams are ordered.
func (l *latency) score() time.Duration {
	usual := min(l.typical, maxPenalty)
	if usual == 0 || l.lossy {
		return max(usual, initialSRTT)
	}
	return usual
}

// penalize raises the smoothed latency after a failure.
func (l *latency) penalize() {
	l.srtt = max(l.srtt, min(max(2*l.srtt, minPenalty), maxPenalty))
}

// timeout returns how long to wait for an answer before the next attempt starts.
func (l *latency) timeout() time.Duration {
	srtt := l.srtt
	if srtt == 0 {
		srtt = initialSRTT
	}
	return min(max(timeoutSRTTs*srtt, minTimeout), maxTimeout)
}

// hedgeDelay returns after which time an answer is late; 0: unknown yet.
func (l *latency) hedgeDelay() time.Duration {
	if l.samples < minSamples {
		return 0
	}
	return max(l.p95+l.p95/4, minHedgeDelay) // a quarter more, for upstreams with a constant latency
}
