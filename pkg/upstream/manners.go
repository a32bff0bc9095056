// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// What is learned about an upstream's manners is believed for so long, and then learned anew.
const mannersTime = 10 * time.Minute

// maxTCPTrials is how many tries at a time are fetched over TCP from an upstream whose connections fail: without one
// there is nothing to be had of an answer that stays truncated, and the first to succeed shows that TCP works again. The
// others fail at once. How often a connection is opened for them is bounded by [pace].
const maxTCPTrials = 16

// mannersProofs is how often something that may be chance must be seen in a row.
const mannersProofs = 3

// EDNS sizes for those with whom the usual one goes wrong. The large one passes unfragmented over Ethernet (RFC 9715
// section 3.1): the second fragment of an answer carries no port, ID or question that a forger has to guess.
const (
	smallSize = 512
	largeSize = 1400
)

// maxRefusedTypes bounds the types that an upstream is known to refuse.
const maxRefusedTypes = 16

// manners are what an upstream can and cannot do, as far as it has shown.
type manners struct {
	noEDNS  habit // FORMERR or NOTIMP for an OPT record, and a good answer without
	noCase  habit // the letters of names come back changed
	noTCP   habit // it truncates answers and does not take connections: let it truncate less
	small   habit // it is silent but to queries with the smallest EDNS size
	refuses []refusal
	fetches int // tries that wait for TCP after UDP
}

// A habit is believed until some time once there are proofs enough.
type habit struct {
	proofs int
	until  time.Time
}

func (h *habit) shown(now time.Time, enough int) {
	if h.proofs++; h.proofs >= enough {
		h.until = now.Add(mannersTime)
		h.proofs = 0
	}
}

func (h *habit) holds(now time.Time) bool { return now.Before(h.until) }

// A refusal is a type that is answered REFUSED or NOTIMP.
type refusal struct {
	rrtype uint16
	habit
}

// apply makes a try fit for the upstream.
func (m *manners) apply(t *try, udp, mixCase bool) {
	t.mixed = udp && mixCase && !m.noCase.holds(t.began)
	t.small = udp && (t.small || m.small.holds(t.began))
	switch {
	case t.plain:
		t.small = false
	case m.noEDNS.holds(t.began):
		if q := t.race.withoutOPT(); q != nil {
			t.query, t.plain, t.small = q, true, false
		}
	case t.small:
		t.query = wire.WithUDPSize(t.query, smallSize)
	case udp && m.noTCP.holds(t.began):
		t.query = wire.WithUDPSize(t.query, largeSize)
	}
}

// mayFetch reports whether a truncated answer may be fetched over TCP. It counts the try then.
func (m *manners) mayFetch(now time.Time) bool {
	if m.noTCP.holds(now) && m.fetches >= maxTCPTrials {
		return false
	}
	m.fetches++
	return true
}

// fetchFailed learns from an answer that was cut, or came in other letters, and could not be had over TCP.
func (m *manners) fetchFailed(t *try, now time.Time) {
	if t.recased {
		m.noCase.shown(now, mannersProofs)
		return
	}
	m.noTCP.shown(now, 2) // the third try then fares better
}

// answered learns from a good answer.
func (m *manners) answered(t *try, now time.Time) {
	switch {
	case !t.plain:
		m.noEDNS.proofs = 0
	case m.noEDNS.holds(now), t.race.failure.Reason != Rcode:
	case t.race.bare:
		// A header alone has only port and ID to guess. One that is forged has a query sent again without OPT; three in
		// a row, with no answer to an OPT record between them, are needed to leave it out for longer.
		m.noEDNS.shown(now, mannersProofs)
	default:
		m.noEDNS.shown(now, 1)
	}
	switch {
	case t.recased: // one alone may be a forger's, who is to gain nothing by it
		m.noCase.shown(now, mannersProofs)
	case t.mixed:
		m.noCase.proofs = 0
	}
	if t.rtt > 0 {
		m.noTCP = habit{}
	}
	switch {
	case !t.small:
		m.small.proofs = 0
	case !m.small.holds(now):
		m.small.shown(now, mannersProofs)
	}
	if len(m.refuses) > 0 {
		rrtype := wire.QueryType(t.query)
		m.refuses = slices.DeleteFunc(m.refuses, func(r refusal) bool { return r.rrtype == rrtype })
	}
}

// refused learns from a refusal.
func (m *manners) refused(now time.Time, rrtype uint16, cause Cause) {
	if cause != CauseRefused && cause != CauseNotImp || rrtype == wire.TypeA || rrtype == wire.TypeAAAA {
		return // who refuses addresses refuses everything
	}
	i := slices.IndexFunc(m.refuses, func(r refusal) bool { return r.rrtype == rrtype })
	if i < 0 {
		if len(m.refuses) == maxRefusedTypes {
			m.refuses = m.refuses[1:]
		}
		m.refuses = append(m.refuses, refusal{rrtype: rrtype})
		i = len(m.refuses) - 1
	}
	m.refuses[i].shown(now, mannersProofs)
}

// refusesType tells whether the type is known to be refused.
func (m *manners) refusesType(now time.Time, rrtype uint16) bool {
	return slices.ContainsFunc(m.refuses, func(r refusal) bool { return r.rrtype == rrtype && r.holds(now) })
}

// known lists what is believed, for people.
func (m *manners) known(now time.Time) []string {
	var list []string
	for _, h := range []struct {
		name string
		*habit
	}{{"no-edns", &m.noEDNS}, {"no-case", &m.noCase}, {"no-tcp", &m.noTCP}, {"small-udp", &m.small}} {
		if h.holds(now) {
			list = append(list, h.name)
		}
	}
	for _, r := range m.refuses {
		if r.holds(now) {
			list = append(list, fmt.Sprintf("refuses-type-%d", r.rrtype))
		}
	}
	return list
}
