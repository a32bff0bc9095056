// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"log/slog"
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
	SourceStale                  // a stale answer, because there was no other in time (RFC 8767)
	SourceUpstream               // a new answer of an upstream
	SourceFailure                // no answer, now or recently
	SourceLocal                  // generated here: identity, ANY
	SourceRefused                // an unusual query, or RD=0 for a name that is not cached
	SourceShed                   // a limit was reached
	SourceTransfer               // a zone transfer
	SourceStatic                 // hosts and templates of the configuration
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

// Sources returns the names of the sources. Like the sets below it is closed: bytes from clients never
// become a name.
func Sources() []string {
	return []string{"zone", "cache", "stale", "upstream", "failure", "local", "refused", "shed", "transfer", "static"}
}

// Sheds returns the names of the limits.
func Sheds() []string {
	return []string{"inflight", "waiting", "refresh", "transfers", "client", "flood"}
}

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
	bucketCount    = 17 // Buckets and the rest
)

// Stats holds the counters since start.
type Stats struct {
	Queries     [2][2][typeClassCount]uint64    // UDP, TCP; IPv4, IPv6; TypeClasses
	Responses   [sourceCount][rcodeCount]uint64 // Sources; Rcodes
	Durations   [bucketCount]uint64             // from query to reply; Buckets
	Total       time.Duration                   // sum of the durations
	Dropped     uint64                          // packets that got no reply
	Malformed   uint64                          // packets answered FORMERR
	Rewritten   uint64                          // queries redirected by a rewrite rule
	Synthesized uint64                          // replies with DNS64 addresses
	ZoneShort   uint64                          // zone answers that lack records because of a limit of the zone
	Joined      uint64                          // queries that joined an in-flight query
	Prefetches  uint64                          // refreshes started
	Failures    uint64                          // upstream queries without an answer
	Panics      uint64                          // recovered panics
	Shed        [shedCount]uint64               // Sheds
	Inflight    int                             // in-flight queries, refreshes included
	Waiting     int                             // waiting clients
	Clients     int                             // with waiting or in-flight queries; up to two per source address, see clientKey
}

// counters are the resolver's counters. In-flight queries add to them one by one, workers once per
// batch.
type counters struct {
	queries   [2][2][typeClassCount]atomic.Uint64
	responses [sourceCount][rcodeCount]atomic.Uint64
	durations [bucketCount]atomic.Uint64
	total     atomic.Int64 // ns

	dropped, malformed, rewritten, synthesized, zoneShort, joined, prefetches, failures, panics atomic.Uint64

	shed [shedCount]atomic.Uint64
}

// response counts one reply of the slow path.
func (c *counters) response(source Source, rcode int, took time.Duration) {
	c.responses[source][rcodeGroup(rcode)].Add(1)
	c.durations[bucket(took)].Add(1)
	c.total.Add(int64(took))
}

// A tally is what one worker counted in one batch.
type tally struct {
	start       time.Time
	replies     uint64
	queries     [2][2][typeClassCount]uint32
	responses   [sourceCount][rcodeCount]uint32
	dropped     uint32
	malformed   uint32
	rewritten   uint32
	synthesized uint32
	zoneShort   uint32
	touched     bool
}

// begin records when the batch's first query was read.
func (t *tally) begin(now time.Time) {
	if !t.touched {
		t.start, t.touched = now, true
	}
}

func (t *tally) query(from *wire.Peer, rrtype uint16) {
	proto, family := 0, 0
	if from.Stream {
		proto = 1
	}
	if !from.Addr.Addr().Is4() {
		family = 1
	}
	t.queries[proto][family][typeClass(rrtype)]++
}

func (t *tally) response(source Source, rcode int) {
	t.responses[source][rcodeGroup(rcode)]++
	t.replies++
}

// flush adds the counts of the batch, done at now, to c. The replies of a batch are sent together, so
// all of them took as long as the batch.
func (t *tally) flush(c *counters, now time.Time) {
	if !t.touched {
		return
	}
	for proto := range t.queries {
		for family := range t.queries[proto] {
			addAll(c.queries[proto][family][:], t.queries[proto][family][:])
		}
	}
	for source := range t.responses {
		addAll(c.responses[source][:], t.responses[source][:])
	}
	add(&c.dropped, t.dropped)
	add(&c.malformed, t.malformed)
	add(&c.rewritten, t.rewritten)
	add(&c.synthesized, t.synthesized)
	add(&c.zoneShort, t.zoneShort)
	if t.replies > 0 {
		took := now.Sub(t.start)
		c.durations[bucket(took)].Add(t.replies)
		c.total.Add(int64(took) * int64(t.replies))
	}
	*t = tally{}
}

func addAll(to []atomic.Uint64, from []uint32) {
	for i, n := range from {
		add(&to[i], n)
	}
}

func add(to *atomic.Uint64, n uint32) {
	if n > 0 {
		to.Add(uint64(n))
	}
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

// Stats may be called at any time.
func (r *Resolver) Stats() Stats {
	c := &r.counts
	s := Stats{
		Total:       time.Duration(c.total.Load()),
		Dropped:     c.dropped.Load(),
		Malformed:   c.malformed.Load(),
		Rewritten:   c.rewritten.Load(),
		Synthesized: c.synthesized.Load(),
		ZoneShort:   c.zoneShort.Load(),
		Joined:      c.joined.Load(),
		Prefetches:  c.prefetches.Load(),
		Failures:    c.failures.Load(),
		Panics:      c.panics.Load(),
	}
	for proto := range c.queries {
		for family := range c.queries[proto] {
			loadAll(s.Queries[proto][family][:], c.queries[proto][family][:])
		}
	}
	for source := range c.responses {
		loadAll(s.Responses[source][:], c.responses[source][:])
	}
	loadAll(s.Durations[:], c.durations[:])
	loadAll(s.Shed[:], c.shed[:])
	r.queries.mu.Lock()
	s.Inflight, s.Waiting, s.Clients = r.queries.count, r.queries.waiting, len(r.queries.clients.byKey)
	r.queries.mu.Unlock()
	return s
}

func loadAll(to []uint64, from []atomic.Uint64) {
	for i := range from {
		to[i] = from[i].Load()
	}
}

// slowQuery is the duration from which a query counts as slow. Stub resolvers retry soon after it.
const slowQuery = time.Second

// A QueryLog logs the queries that it selects.
type QueryLog struct {
	Log    *slog.Logger
	All    bool // every query
	Errors bool // replies other than NOERROR and NXDOMAIN
	Slow   bool // replies that took a second or more
	Sample int  // every n-th query; 0: none

	count atomic.Uint64
}

// selects reports whether to log a reply.
func (l *QueryLog) selects(rcode int, took time.Duration) bool {
	return l.All ||
		l.Errors && rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain ||
		l.Slow && took >= slowQuery ||
		l.Sample > 0 && l.count.Add(1)%uint64(l.Sample) == 0
}

func (l *QueryLog) record(ctx context.Context, ask *wire.Question, from *wire.Peer, source Source, rcode int, took time.Duration) {
	if !l.selects(rcode, took) {
		return
	}
	question := ask.QuestionSection()
	var name []byte
	rrtype := ask.Type
	if len(question) > 4 {
		name = wire.AppendText(nil, question[:len(question)-4])
		rrtype = ask.OriginalType() // the type looked up may differ
	}
	l.Log.InfoContext(ctx, "query",
		"name", string(name), "type", rrtype, "client", from.Addr.Addr(), "tcp", from.Stream,
		"rcode", Rcodes()[rcodeGroup(rcode)], "source", Sources()[source], "took", took)
}
