// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Source is the origin of a reply.
type Source uint8

// The sources, in the order of Sources.
const (
	SourceZone     Source = iota // the cluster zone
	SourceCache                  // a cached answer
	SourceStale                  // a stale answer, because upstream gave none in time (RFC 8767)
	SourceUpstream               // a new answer of an upstream
	SourceFailure                // SERVFAIL: there is no answer, or a cached failure
	SourceLocal                  // generated here: identity, ANY
	SourceRefused                // a malformed, unusual or looping query, or RD=0 for a name that is not cached
	SourceShed                   // a limit was reached
	SourceTransfer               // a zone transfer
	SourceStatic                 // hosts and templates of the configuration
	SourceSearch                 // the answer for the name under another suffix of the pod's search path
	SourceEtcd                   // records of etcd
	SourceBlock                  // a block list
	SourceKernel                 // a copy of an answer of the zones or the cache, in the kernel
	sourceCount
)

// A Shed is the limit that shed a query.
type Shed uint8

// The limits, in the order of Sheds.
const (
	ShedInflight  Shed = iota // in-flight queries
	ShedWaiting               // waiting clients
	ShedRefresh               // background refreshes
	ShedTransfers             // zone transfers
	ShedClient                // limit of one client
	ShedFlood                 // SERVFAIL replies to one flooding client
	shedCount
)

// Sources returns the names of the sources. The set is closed, like those below: bytes from clients never
// become a metric label.
func Sources() []string {
	return []string{"zone", "cache", "stale", "upstream", "failure", "local", "refused", "shed", "transfer", "static", "search", "etcd", "block", "kernel"}
}

// Sheds returns the names of the limits.
func Sheds() []string {
	return []string{"inflight", "waiting", "refresh", "transfers", "client", "flood"}
}

// TransferKinds returns the names of the kinds of zone transfers.
func TransferKinds() []string { return []string{"full", "incremental"} }

// TypeClasses returns the names of the query type groups.
func TypeClasses() []string {
	return []string{"A", "AAAA", "SRV", "PTR", "CNAME", "TXT", "MX", "HTTPS", "other"}
}

// Rcodes returns the names of the response code groups.
func Rcodes() []string {
	return []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "BADVERS", "other"}
}

// Buckets returns the upper bounds of the duration histogram. The last bucket counts longer durations.
func Buckets() [bucketCount - 1]time.Duration {
	return [bucketCount - 1]time.Duration{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
		25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
		500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	}
}

const (
	typeClassCount = 9
	rcodeCount     = 8
	bucketCount    = 17 // length of Buckets, plus one for longer durations
	timedCount     = 6  // length of TimedSources
)

// TimedSources returns the names of the sources whose durations are counted apart. The last one is for all other sources: with
// [Sources] there would be three times as many histograms, most of them empty.
func TimedSources() []string {
	return []string{"zone", "cache", "stale", "upstream", "failure", "other"}
}

// timed returns the index into TimedSources. They begin with the first sources, in the same order.
func timed(source Source) int { return min(int(source), timedCount-1) }

// Durations are the times from query to reply.
type Durations struct {
	Replies [bucketCount]uint64 // replies by time, see Buckets
	Total   time.Duration       // sum of the times
}

// Stats holds the counters since start.
type Stats struct {
	Queries     [2][2][typeClassCount]uint64    // by transport (UDP, TCP), family (IPv4, IPv6) and TypeClasses
	Responses   [sourceCount][rcodeCount]uint64 // by Sources and Rcodes
	Durations   [timedCount]Durations           // how long replies took, by TimedSources
	Dropped     uint64                          // packets that got no reply
	Malformed   uint64                          // malformed packets, answered FORMERR
	Rewritten   uint64                          // queries redirected by a rewrite rule
	Synthesized uint64                          // replies with DNS64 addresses
	ZoneShort   uint64                          // zone answers that lack records because of a limit of the zone
	Joined      uint64                          // queries that joined an in-flight query
	Prefetches  uint64                          // refreshes started
	Failures    uint64                          // upstream queries without a usable answer
	Panics      uint64                          // recovered panics
	Shed        [shedCount]uint64               // shed queries, refreshes and transfers, by Sheds
	Transfers   [2]uint64                       // completed zone transfers, by TransferKinds
	Inflight    int                             // in-flight queries, refreshes included
	Waiting     int                             // waiting clients
	Clients     int                             // clients with waiting or in-flight queries; up to two per source address, see clientKey
}

// The simple counters, by index. Stats names them.
const (
	countDropped = iota
	countMalformed
	countRewritten
	countSynthesized
	countZoneShort
	countJoined
	countPrefetches
	countFailures
	countPanics
	countShed                                          // index of the first Shed
	countTransfers = countShed + int(shedCount)        // index of the first of Stats.Transfers
	countQueries   = countTransfers + 2                // index of the first of Stats.Queries
	countResponses = countQueries + 2*2*typeClassCount // index of the first of Stats.Responses
	counterCount   = countResponses + int(sourceCount)*rcodeCount
)

// counters are the resolver's counters. In-flight queries add to them one by one, workers once per
// batch.
type counters struct {
	each      [counterCount]atomic.Uint64
	durations [timedCount]struct {
		replies [bucketCount]atomic.Uint64
		total   atomic.Int64 // ns
	}
}

func (c *counters) add(counter int) { c.each[counter].Add(1) }

func (c *counters) shed(why Shed) { c.add(countShed + int(why)) }

// response counts one reply that AnswerFromMemory did not give.
func (c *counters) response(source Source, rcode int, took time.Duration) {
	c.add(responseCounter(source, rcode))
	c.took(timed(source), took, 1)
}

// took counts replies of one of TimedSources that each took the given duration.
func (c *counters) took(source int, took time.Duration, replies uint64) {
	d := &c.durations[source]
	d.replies[bucket(took)].Add(replies)
	d.total.Add(int64(took) * int64(replies)) //nolint:gosec // far below 2^63
}

// responseCounter returns the index of the counter of replies.
func responseCounter(source Source, rcode int) int {
	return countResponses + int(source)*rcodeCount + rcodeGroup(rcode)
}

// A tally is what one worker counted in one batch.
type tally struct {
	start   time.Time
	each    [counterCount]uint32
	touched bool
}

// begin records when the batch's first query was read.
func (t *tally) begin(now time.Time) {
	if !t.touched {
		t.start, t.touched = now, true
	}
}

func (t *tally) query(from *wire.Peer, rrtype uint16) {
	at := countQueries + typeClass(rrtype)
	if from.Stream {
		at += 2 * typeClassCount
	}
	if !from.Addr.Addr().Is4() {
		at += typeClassCount
	}
	t.each[at]++
}

func (t *tally) response(source Source, rcode int) {
	t.each[responseCounter(source, rcode)]++
}

// flush adds the counts of the batch, done at now, to c, and returns the number of its replies. The replies of a batch are sent
// together, so all of them took as long as the batch.
func (t *tally) flush(c *counters, now time.Time) (total uint32) {
	if !t.touched {
		return 0
	}
	var replies [timedCount]uint64
	for i, n := range t.each[:] {
		if n == 0 {
			continue
		}
		c.each[i].Add(uint64(n))
		if i >= countResponses {
			total += n
			replies[timed(Source((i-countResponses)/rcodeCount))] += uint64(n) //nolint:gosec // below sourceCount
		}
	}
	for source, n := range replies {
		if n > 0 {
			c.took(source, now.Sub(t.start), n)
		}
	}
	*t = tally{}
	return total
}

// typeClass returns the index into TypeClasses.
func typeClass(rrtype uint16) int {
	switch rrtype {
	case wire.TypeA:
		return 0
	case wire.TypeAAAA:
		return 1
	case wire.TypeSRV:
		return 2
	case wire.TypePTR:
		return 3
	case wire.TypeCNAME:
		return 4
	case wire.TypeTXT:
		return 5
	case wire.TypeMX:
		return 6
	case wire.TypeHTTPS:
		return 7
	}
	return typeClassCount - 1
}

// rcodeGroup returns the index into Rcodes.
func rcodeGroup(rcode int) int {
	switch {
	case rcode <= wire.RcodeRefused:
		return rcode
	case rcode == wire.RcodeBadVers:
		return 6
	}
	return rcodeCount - 1
}

// bucket returns the index into the histogram.
func bucket(d time.Duration) int {
	for i, bound := range Buckets() {
		if d <= bound {
			return i
		}
	}
	return bucketCount - 1
}

// stats returns the counts. Inflight, Waiting and Clients are not set.
func (c *counters) stats() Stats {
	count := func(i int) uint64 { return c.each[i].Load() }
	s := Stats{
		Dropped:     count(countDropped),
		Malformed:   count(countMalformed),
		Rewritten:   count(countRewritten),
		Synthesized: count(countSynthesized),
		ZoneShort:   count(countZoneShort),
		Joined:      count(countJoined),
		Prefetches:  count(countPrefetches),
		Failures:    count(countFailures),
		Panics:      count(countPanics),
	}
	for i := range 2 * 2 * typeClassCount {
		s.Queries[i/(2*typeClassCount)][i/typeClassCount%2][i%typeClassCount] = count(countQueries + i)
	}
	for i := range int(sourceCount) * rcodeCount {
		s.Responses[i/rcodeCount][i%rcodeCount] = count(countResponses + i)
	}
	for i := range s.Shed {
		s.Shed[i] = count(countShed + i)
	}
	for i := range s.Transfers {
		s.Transfers[i] = count(countTransfers + i)
	}
	for i := range s.Durations {
		from, to := &c.durations[i], &s.Durations[i]
		to.Total = time.Duration(from.total.Load())
		for bucket := range to.Replies {
			to.Replies[bucket] = from.replies[bucket].Load()
		}
	}
	return s
}
