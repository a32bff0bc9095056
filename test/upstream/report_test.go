// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// A report is what became of the queries of a load, or of those of some time.
type report struct {
	asked  int
	lost   int
	rcodes map[int]int
	by     map[netip.Addr]int // NOERROR by the address in the answer
	took   []time.Duration    // of what was answered, in order of length
}

// ownAddr stands in report.by for the address that the name itself spells, which servers of different places give alike.
func ownAddr() netip.Addr { return netip.IPv4Unspecified() }

// between reports on queries that were sent in a span of time. Those without an answer so far are lost.
func (l *load) between(from, to time.Time) report {
	r := report{rcodes: map[int]int{}, by: map[netip.Addr]int{}}
	for i := range int(l.asked.Load()) {
		o := &l.outcomes[i]
		if sent := o.sent.Load(); sent < from.UnixNano() || sent >= to.UnixNano() {
			continue
		}
		r.asked++
		took := o.took.Load()
		if took == 0 {
			r.lost++
			continue
		}
		r.took = append(r.took, time.Duration(took))
		code := int(o.code.Load())
		r.rcodes[code]++
		if code == dns.RcodeSuccess {
			r.by[l.answerAddr(i)]++
		}
	}
	slices.Sort(r.took)
	return r
}

// answerAddr is the address in the answer to query i.
func (l *load) answerAddr(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], l.outcomes[i].who.Load())
	a := netip.AddrFrom4(b)
	if a == addressIn(l.nameNumber(i)) {
		return ownAddr()
	}
	return a
}

// all reports on every query.
func (l *load) all() report { return l.between(l.began, time.Now().Add(time.Hour)) }

// quantile is the time that the given part of the answers, in thousandths, took at most.
func (r report) quantile(thousandths int) time.Duration {
	if len(r.took) == 0 {
		return 0
	}
	return r.took[min(len(r.took)-1, len(r.took)*thousandths/1000)]
}

// good is how many queries were answered with NOERROR.
func (r report) good() int { return r.rcodes[dns.RcodeSuccess] }

// bad is how many queries were lost or answered with anything but NOERROR.
func (r report) bad() int { return r.asked - r.good() }

// share is the part of the good answers that an address was in.
func (r report) share(a netip.Addr) float64 {
	if r.good() == 0 {
		return 0
	}
	return float64(r.by[a]) / float64(r.good())
}

// shares are the parts of the good answers by address, the greatest first.
func (r report) shares() string {
	var parts []string
	for _, a := range slices.SortedFunc(maps.Keys(r.by), func(a, b netip.Addr) int { return r.by[b] - r.by[a] }) {
		parts = append(parts, fmt.Sprintf("%.1f %%", 100*r.share(a)))
	}
	return "shares " + strings.Join(parts, ", ")
}

// String is the report in a few words.
func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s asked, %s lost", nodetest.Thousands(r.asked), nodetest.Thousands(r.lost))
	for _, code := range slices.Sorted(maps.Keys(r.rcodes)) {
		fmt.Fprintf(&b, ", %s %s", nodetest.Thousands(r.rcodes[code]), dns.RcodeToString[code])
	}
	fmt.Fprintf(&b, "; median %s, longest %s, p99 %s", ms(r.quantile(500)), ms(r.quantile(1000)), ms(r.quantile(990)))
	return b.String()
}

// ms writes a time in ms.
func ms(d time.Duration) string {
	v := float64(d) / 1e6
	if v > -10 && v < 10 {
		return fmt.Sprintf("%.2f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}
